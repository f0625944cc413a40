"""Configuration is refused in a sentence that names the field, the value and what would do."""

import json

import pytest

from engine.config import EngineConfig, ModelConfig, resolve_max_model_len
from engine.errors import InvalidConfig
from tests.engine.workloads import DEMO


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tensor_parallel_sise": 2}, "did you mean 'tensor_parallel_size'"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0"),
        ({"dtype": "int3"}, "dtype='int3'"),
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
