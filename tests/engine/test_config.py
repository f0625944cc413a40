"""Configuration is refused in a sentence that names the field, the value and what would do."""

import json

import pytest

from engine.config import EngineConfig, ModelConfig, resolve_max_model_len
from engine.errors import InvalidConfig
from tests.engine.workloads import DEMO

SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tensor_parallel_sise": 2}, "did you mean 'tensor_parallel_size'"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0"),
        ({"dtype": "int3"}, "dtype='int3'"),
        ({"quantization": "int3"}, "quantization='int3': Input should be 'int8', 'int4' or 'fp8'"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization=1.5"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "max_num_seqs=16"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(InvalidConfig) as caught:
        EngineConfig.create(model=DEMO, **arguments)
    assert said in str(caught.value)


def test_a_model_is_required():
    with pytest.raises(InvalidConfig, match="model is required"):
        EngineConfig.create()


def test_a_context_over_the_models_says_what_would_work():
    model = ModelConfig.load(DEMO)
    config = EngineConfig.create(model=DEMO, max_model_len=model.max_position_embeddings + 1)
    with pytest.raises(InvalidConfig, match=f"use {model.max_position_embeddings} or less"):
        resolve_max_model_len(config, model)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        (json.dumps(SHAPE | {"hidden_size": "256"}), "hidden_size='256'"),
        (json.dumps(SHAPE | {"num_attention_heads": 0}), "num_attention_heads=0"),
        (json.dumps(SHAPE | {"num_key_value_heads": 3}), "num_key_value_heads=3 does not divide"),
        (json.dumps(SHAPE | {"vocab_size": -1}), "vocab_size=-1"),
        (json.dumps(SHAPE | {"eos_token_id": "x"}), "eos_token_ids"),
        ("[]", "holds list"),
        (json.dumps({"hidden_size": 8}), "is missing"),
        (None, "does not exist"),
    ],
)
def test_broken_model_configs_name_the_file(tmp_path, text, said):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidConfig, match=r"config\.json") as caught:
        ModelConfig.load(str(tmp_path))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("backend", "tensor_parallel_size", "expected"),
    [("auto", 1, True), ("auto", 2, False), ("local", 1, True), ("local", 2, True), ("ray", 1, False)],
)
def test_one_rank_runs_in_process_unless_ray_is_asked_for(
    backend: str, tensor_parallel_size: int, expected: bool
) -> None:
    config = EngineConfig.create(
        model="x", distributed_executor_backend=backend, tensor_parallel_size=tensor_parallel_size
    )
    assert config.runs_in_process is expected
