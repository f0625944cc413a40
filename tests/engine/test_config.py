"""Configuration is refused in a sentence that names the field, the value and what would do."""

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.engine.support.workloads import DEMO

SECRET = "0123456789abcdef"
OFFLOADED = {"kv_offloading_path": "/kept", "kv_role": "producer"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tensor_parallel_sise": 2}, "did you mean 'tensor_parallel_size'"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0"),
        ({"dtype": "int3"}, "dtype='int3'"),
        ({"quantization": "int3"}, "quantization='int3': Input should be 'int8', 'int4' or 'fp8'"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization=1.5"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "max_num_seqs=16"),
        ({"speculative_config": {"method": "ngrams"}}, "speculative_config.method='ngrams': Input should be 'ngram'"),
        ({"speculative_config": {"num_speculative_token": 3}}, "did you mean 'speculative_config.num_speculative_tok"),
        ({"speculative_config": {"num_speculative_tokens": 32}}, "speculative_config.num_speculative_tokens=32"),
        ({"speculative_config": {"prompt_lookup_min": 9}}, "prompt_lookup_min=9 is above prompt_lookup_max=8"),
        ({"speculative_config": {"method": "draft_model"}}, "method=draft_model needs speculative_config.model"),
        ({"speculative_config": {"method": "ngram", "model": "x"}}, "speculative_config.model=x is of no use with"),
        ({"speculative_config": {"quantization": "int8"}}, "quantization=int8 is of no use with method=ngram"),
        ({"speculative_config": {"model": "x", "prompt_lookup_max": 4}}, "prompt_lookup_max=4 is of no use with"),
        ({"kv_role": "producer"}, "kv_role=producer is of no use without kv_offloading_path"),
        ({"kv_offloading_path": "/kept", "speculative_config": {"model": "x"}}, "cannot be used with a draft model"),
        ({"kv_offloading_path": "/kept", "enable_prefix_caching": False}, "needs enable_prefix_caching"),
        ({"kv_offloading_path_size": 20}, "kv_offloading_path_size=20 bounds a folder, and kv_offloading_path names"),
        ({"kv_offloading_size": 8, "swap_space": 1}, "kv_offloading_size=8, of all ranks, takes the place of swap_spa"),
        ({"kv_offloading_path": "/kept", "kv_offloading_path_size": float("inf")}, "kv_offloading_path_size=inf"),
        ({"kv_offloading_path": "/kept", "swap_space": 0}, "needs host memory that blocks pass through; swap_space=0"),
        ({"kv_offloading_path": "/kept", "kv_offloading_path_size": 1e300}, "kv_offloading_path_size=1e+300: Input"),
        ({"kv_offloading_path": "/kept", "kv_offloading_path_size": 1e-9}, "greater than or equal to 0.0009765625"),
        ({"kv_offloading_size": 1e-9}, "kv_offloading_size=1e-09: Input should be greater than or equal to"),
        ({"kv_offloading_size": 8 << 30}, "kv_offloading_size=8589934592: Input should be less than or equal to 65536"),
        ({"swap_space": 4 << 30}, "swap_space=4294967296: Input should be less than or equal to 65536"),
        ({"kv_peer_secret": SECRET}, "kv_peer_secret is of no use without kv_offloading_path"),
        ({"kv_peer_secret": SECRET, "kv_offloading_path": "/kept"}, "kv_peer_secret is of no use with kv_role=both"),
        (
            OFFLOADED | {"kv_peer_secret": "", "kv_offloading_path": "/kept"},
            "kv_peer_secret has 0 characters, and need",
        ),
        (OFFLOADED | {"kv_peer_secret": SECRET[:15]}, "kv_peer_secret has 15 characters, and needs 16 or more"),
        (
            OFFLOADED | {"kv_peer_secret": SECRET, "kv_offloading_path": "s3://bucket/kept"},
            "path=s3://bucket/kept, which",
        ),
        (OFFLOADED | {"kv_peer_secret": 1234}, "kv_peer_secret: Input should be a valid string"),
        ({"device": "cpu", "accelerator_type": "H100"}, "accelerator_type=H100 is a kind of GPU, and device=cpu"),
        (
            {"distributed_executor_backend": "local", "pipeline_parallel_size": 2},
            "local runs one rank, not tensor_parallel_size=1 × pipeline_parallel_size=2; use ray",
        ),
        ({"kv_events_config": {"hwm": 1 << 31}}, "kv_events_config.hwm=2147483648"),
        ({"kv_events_config": {"buffer_steps": 1 << 40}}, "kv_events_config.buffer_steps=1099511627776"),
        ({"kv_events_config": {"endpoint": "tcp://*:65536"}}, "endpoint='tcp://*:65536': is not tcp://HOST:PORT, with"),
        ({"kv_events_config": {"replay_endpoint": "ipc://"}}, "kv_events_config.replay_endpoint='ipc://': is not tcp"),
        ({"kv_events_config": {"endpoint": "ipc:///x\0y"}}, "is not tcp://HOST:PORT"),
        ({"speculative_config": "ngram"}, "speculative_config='ngram': Input should be a valid dict"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(InvalidConfig) as caught:
        EngineConfig.create(model=DEMO, **arguments)
    assert said in str(caught.value)
    assert SECRET[:15] not in str(caught.value)


@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("path", ["/kept", "file:///kept"])
def test_a_secret_of_peers_is_for_both_ends(role: str, path: str) -> None:
    config = EngineConfig.create(model=DEMO, kv_offloading_path=path, kv_role=role, kv_peer_secret=SECRET)
    assert config.kv_peer_secret == SECRET and SECRET not in repr(config)


def test_a_model_is_required():
    with pytest.raises(InvalidConfig, match="model is required"):
        EngineConfig.create()


@pytest.mark.parametrize(
    ("backend", "tensor_parallel_size", "expected"),
    [("auto", 1, True), ("auto", 2, False), ("local", 1, True), ("ray", 1, False)],
)
def test_one_rank_runs_in_process_unless_ray_is_asked_for(
    backend: str, tensor_parallel_size: int, expected: bool
) -> None:
    config = EngineConfig.create(
        model="x", distributed_executor_backend=backend, tensor_parallel_size=tensor_parallel_size
    )
    assert config.runs_in_process is expected


def test_a_draft_model_is_a_model_of_one_rank():
    names = {"model": "file:///a%20draft", "quantization": "int8"}
    config = EngineConfig.create(model=DEMO, tokenizer=DEMO, tensor_parallel_size=2, speculative_config=names)
    assert config.draft is not None and config.speculative_config is not None
    assert (config.speculative_config.method, config.speculative_config.num_speculative_tokens) == ("draft_model", 4)
    assert (config.draft.model, config.draft.quantization, config.draft.tokenizer) == ("/a draft", "int8", None)
    assert (config.draft.world_size, config.draft.draft, config.quantization) == (1, None, None)
    elsewhere = config.with_draft(config.draft.model_copy(update={"model": "/other"}))
    assert elsewhere.draft == config.draft.model_copy(update={"model": "/other"})
    assert EngineConfig.create(**elsewhere.model_dump()) == elsewhere


def test_host_memory_is_that_of_each_rank_or_a_share_of_all() -> None:
    assert EngineConfig.create(model=DEMO, swap_space=0.5, tensor_parallel_size=4).host_cache_bytes == 1 << 29
    assert EngineConfig.create(model=DEMO, kv_offloading_size=2, tensor_parallel_size=4).host_cache_bytes == 1 << 29


@pytest.mark.parametrize("speculation", [None, {"method": "ngram"}, {}])
def test_others_have_none(speculation):
    assert EngineConfig.create(model=DEMO, speculative_config=speculation).draft is None
