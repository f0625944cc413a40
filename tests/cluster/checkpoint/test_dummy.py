"""Checkpoints with random weights are what other readers of the format expect, and the same for the
same seed.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from cluster.checkpoint.dummy import _to_bfloat16, make_checkpoint, make_folder, num_bytes
from cluster.checkpoint.files import read_tensors
from cluster.checkpoint.shapes import SHAPES, Experts, Shape
from engine.errors import InvalidConfig
from parallel.spec import read

TINY = Shape(64, 3, 4, 2, 96, 768, True)


def made(folder: Path) -> Path:
    make_folder(folder)
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize(
    "shape",
    [
        TINY,
        replace(TINY, tie_word_embeddings=False),
        replace(TINY, head_dim=32, has_qk_norm=True),
        replace(TINY, experts=Experts(4, 2, 48, False, 80)),
        replace(TINY, head_dim=32, has_qk_norm=True, experts=Experts(4, 2, 48, True)),
    ],
    ids=["tied", "untied", "qwen3", "qwen2_moe", "qwen3_moe"],
)
def test_transformers_loads_every_weight(tmp_path: Path, shape: Shape) -> None:
    make_checkpoint(made(tmp_path / "made"), shape)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "made", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.bfloat16
    up = model.model.layers[1].mlp.up_proj.weight if shape.experts is None else model.model.layers[1].mlp.gate.weight
    assert 0.017 < up.float().std() < 0.023
    assert model.config.model_type == shape.model_type
    shapes = read(json.loads((tmp_path / "made/config.json").read_text())).shapes()
    assert {name: tensor.shape for name, tensor in read_tensors(tmp_path / "made").items()} == shapes
    assert (model.model.norm.weight == 1).all()


def test_the_seed_decides_and_nothing_else(tmp_path: Path) -> None:
    make_checkpoint(made(tmp_path / "a"), TINY, seed=3)
    make_checkpoint(made(tmp_path / "b"), TINY, seed=3)
    make_checkpoint(made(tmp_path / "c"), TINY, seed=4)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert bytes_of(tmp_path / "a") != bytes_of(tmp_path / "c")


def test_shards_hold_the_same_tensors_as_one_file(tmp_path: Path) -> None:
    written: list[int] = []
    make_checkpoint(made(tmp_path / "one"), TINY)
    make_checkpoint(made(tmp_path / "many"), TINY, shard_bytes=100_000, progress=written.append)
    index = json.loads((tmp_path / "many/model.safetensors.index.json").read_text())
    assert sum(written) == index["metadata"]["total_size"] == num_bytes(TINY)
    assert len(set(index["weight_map"].values())) > 2
    with safe_open(tmp_path / "one/model.safetensors", "pt") as one:
        assert set(one.keys()) == set(index["weight_map"])
        for name, file in index["weight_map"].items():
            with safe_open(tmp_path / "many" / file, "pt") as shard:
                assert torch.equal(shard.get_tensor(name), one.get_tensor(name))


def test_rounds_to_bfloat16_as_torch_does() -> None:
    values = np.random.default_rng(0).standard_normal(10_000, dtype=np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(_to_bfloat16(values), expected)


def test_does_not_write_over_a_checkpoint(tmp_path: Path) -> None:
    make_folder(tmp_path)
    make_checkpoint(tmp_path, TINY)
    with pytest.raises(InvalidConfig, match="holds a checkpoint already"):
        make_folder(tmp_path)
    with pytest.raises(InvalidConfig, match=r"config.json/x cannot be made: Not a directory"):
        make_folder(tmp_path / "config.json" / "x")


def test_the_shapes_have_the_published_numbers_of_weights() -> None:
    millions = {name: round(num_bytes(shape) / 2e6) for name, shape in SHAPES.items()}
    del millions["qwen3-moe-small"]
    assert millions == {
        "qwen2.5-0.5b": 494,
        "qwen2.5-1.5b": 1544,
        "qwen2.5-7b": 7616,
        "qwen3-0.6b": 596,
        "qwen3-4b": 4022,
        "qwen1.5-moe-a2.7b": 14316,
        "qwen3-30b-a3b": 30532,
    }
