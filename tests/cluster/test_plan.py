"""Configurations that are possible, and the sentence that the others get."""

import json
import shutil
from pathlib import Path

import pytest

from cluster.plan import ARCHITECTURES, make_plan
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from parallel.models import MODELS

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"


def plan_of(folder: Path = DEMO, **arguments: object):
    return make_plan(EngineConfig.create(model=str(folder), **arguments))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        shutil.copyfile(DEMO / name, tmp_path / name)
    return tmp_path


def edit(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_knows_the_architectures_that_there_are_models_for() -> None:
    assert set(ARCHITECTURES) == set(MODELS)


def test_weights_are_those_of_the_file() -> None:
    size = (DEMO / "model.safetensors").stat().st_size
    assert 0.98 < plan_of().weight_bytes / size < 1.0  # the header and the biases apart


def test_the_cache_shrinks_with_both_degrees_until_heads_are_replicated() -> None:
    alone = plan_of().cache_bytes_per_token
    assert alone == 2 * 4 * 2 * 64 * 2  # keys and values, layers, heads, width, bytes
    assert plan_of(tensor_parallel_size=2).cache_bytes_per_token == alone // 2
    assert plan_of(tensor_parallel_size=4).cache_bytes_per_token == alone // 2
    assert plan_of(tensor_parallel_size=2, pipeline_parallel_size=2).cache_bytes_per_token == alone // 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"tensor_parallel_size": 3},
            "tensor_parallel_size=3 does not divide the model's 4 attention heads .* use 1, 2 or 4",
        ),
        ({"pipeline_parallel_size": 5}, "pipeline_parallel_size=5 exceeds the model's 4 layers; use 4 or less"),
        ({"max_model_len": 4096}, "max_model_len=4096 exceeds the model's 2048 positions; use 2048 or less"),
        ({"tokenizer": "/nowhere"}, "/nowhere/tokenizer.json does not exist"),
        ({"kv_cache_memory_bytes": 100}, "kv_cache_memory_bytes=100 holds no block"),
    ],
)
def test_refuses_what_cannot_be(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        plan_of(**arguments)


def test_refuses_other_architectures(checkpoint: Path) -> None:
    edit(checkpoint, architectures=["LlamaForCausalLM"])
    with pytest.raises(InvalidConfig, match="LlamaForCausalLM is not served; Qwen2ForCausalLM is"):
        plan_of(checkpoint)


def test_refuses_missing_weights_unless_they_are_dummies(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(InvalidConfig, match=r"model.safetensors does not exist \(1 of 1 weight files are missing\)"):
        plan_of(checkpoint)
    assert plan_of(checkpoint, load_format="dummy").weight_bytes > 0
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x-1", "b": "x-2"}}))
    with pytest.raises(InvalidConfig, match=r"x-1 does not exist \(2 of 2 weight files are missing\)"):
        plan_of(checkpoint)
