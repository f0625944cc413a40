"""Fields of which one makes another useless or impossible."""

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.engine.support.workloads import DEMO

SECRET = "0123456789abcdef"
OFFLOADED = {"kv_offloading_path": "/kept", "kv_role": "producer"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "max_num_seqs=16"),
        ({"kv_role": "producer"}, "kv_role=producer is of no use without kv_offloading_path"),
        ({"kv_offloading_path": "/kept", "speculative_config": {"model": "x"}}, "cannot be used with a draft model"),
        ({"kv_offloading_path": "/kept", "enable_prefix_caching": False}, "needs enable_prefix_caching"),
        ({"kv_offloading_path_size": 20}, "kv_offloading_path_size=20 bounds a folder, and kv_offloading_path names"),
        ({"kv_offloading_size": 8, "swap_space": 1}, "kv_offloading_size=8, of all ranks, takes the place of swap_spa"),
        ({"kv_offloading_path": "/kept", "swap_space": 0}, "needs host memory that blocks pass through; swap_space=0"),
        ({"kv_peer_transport": "nixl"}, "kv_peer_transport=nixl is of no use without kv_peer_secret"),
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
        ({"kv_leaving_path": "/left"}, "kv_leaving_path=/left is of no use without kv_leaving_size"),
        ({"kv_leaving_size": 1, "swap_space": 0}, "kv_leaving_size=1 needs enable_prefix_caching, host memory"),
        ({"device": "cpu", "accelerator_type": "H100"}, "accelerator_type=H100 is a kind of GPU, and device=cpu"),
        (
            {"distributed_executor_backend": "local", "pipeline_parallel_size": 2},
            "local runs one rank, not tensor_parallel_size=1 × pipeline_parallel_size=2; use ray",
        ),
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
