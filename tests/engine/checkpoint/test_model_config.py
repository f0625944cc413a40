"""Config files of models are refused with the file's name, the field and the value."""

import json
import re

import pytest

from engine.checkpoint.model_config import ModelConfig, resolve_max_model_len
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.engine.support.workloads import DEMO

SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


def test_a_context_over_the_models_says_what_would_work():
    model = ModelConfig.load(DEMO)
    config = EngineConfig.create(model=DEMO, max_model_len=model.max_position_embeddings + 1)
    with pytest.raises(InvalidConfig, match=f"use {model.max_position_embeddings} or less"):
        resolve_max_model_len(config, model)


def test_what_requests_leave_out_is_as_qwens_files_say(tmp_path):
    """generation_config.json of Qwen2.5-7B-Instruct."""
    generation = {
        "bos_token_id": 151643,
        "pad_token_id": 151643,
        "do_sample": True,
        "eos_token_id": [151645, 151643],
        "repetition_penalty": 1.05,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "transformers_version": "4.37.0",
    }
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"vocab_size": 151936}))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    model = ModelConfig.load(str(tmp_path))
    assert model.default_sampling == {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    assert model.eos_token_ids == (151645, 151643)
    config = EngineConfig.create(model=str(tmp_path))
    assert model.sampling_defaults(config) == model.default_sampling
    assert model.sampling_defaults(config.model_copy(update={"generation_config": "vllm"})) == {}


@pytest.mark.parametrize(
    ("generation", "said"),
    [
        ({"temperature": "hot"}, "generation_config.json: temperature must be a number, got 'hot'"),
        ({"top_p": 0.0}, "generation_config.json: top_p must be above 0.0, got 0.0"),
        ({"top_k": 20.5}, "generation_config.json: top_k must be an integer, got 20.5"),
    ],
)
def test_defaults_that_no_request_could_have(tmp_path, generation, said):
    """Each request that leaves the parameter out would be refused for what it did not say."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    model, config = ModelConfig.load(str(tmp_path)), EngineConfig.create(model=str(tmp_path))
    with pytest.raises(InvalidConfig, match=f"{said}; --generation-config vllm"):
        model.sampling_defaults(config)
    assert model.sampling_defaults(config.model_copy(update={"generation_config": "vllm"})) == {}


@pytest.mark.parametrize("value", ["151645", [1, None], True])
def test_what_is_no_end_token_names_its_file(tmp_path, value):
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(InvalidConfig, match=re.escape(f"/generation_config.json: eos_token_id={value!r} is no token")):
        ModelConfig.load(str(tmp_path))


@pytest.mark.parametrize(("named", "found"), [([31, 32, -1], (31,)), (-1, ()), (151645, ()), ([], ()), (None, ())])
def test_an_end_token_that_the_model_cannot_give_is_none(tmp_path, named, found):
    """As in transformers; a grammar's mask has no bit for it."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"eos_token_id": named}))
    assert ModelConfig.load(str(tmp_path)).eos_token_ids == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        (json.dumps(SHAPE | {"hidden_size": "256"}), "hidden_size='256'"),
        (json.dumps(SHAPE | {"num_attention_heads": 0}), "num_attention_heads=0"),
        (json.dumps(SHAPE | {"num_key_value_heads": 3}), "num_key_value_heads=3 does not divide"),
        (json.dumps(SHAPE | {"vocab_size": -1}), "vocab_size=-1"),
        (json.dumps(SHAPE | {"eos_token_id": "x"}), "eos_token_id="),
        (json.dumps(SHAPE | {"eos_token_id": 1.5}), "eos_token_id="),
        (json.dumps(SHAPE | {"eos_token_id": {"a": 1}}), "eos_token_id="),
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
