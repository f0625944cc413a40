import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from parallel.errors import InvalidCheckpoint
from parallel.weights import Checkpoint, Dummy

CPU = torch.device("cpu")
TENSORS = {"a.weight": torch.arange(24.0).view(6, 4), "b.bias": torch.arange(5.0)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


def open_checkpoint(folder: Path, unused: set[str] = frozenset(), dtype: torch.dtype = torch.float32) -> Checkpoint:  # type: ignore[assignment]
    return Checkpoint(str(folder), SHAPES, unused, dtype, CPU, {})


def save_index(folder: Path, files: dict[str, dict[str, Tensor]], **moved: str) -> None:
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    names = {name: file for file, tensors in files.items() for name in tensors} | moved
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


SHARDS = {
    "model-1.safetensors": {"a.weight": TENSORS["a.weight"]},
    "model-2.safetensors": {"b.bias": TENSORS["b.bias"]},
}


@pytest.mark.parametrize("is_sharded", [False, True])
def test_slices_are_read_and_cast(tmp_path: Path, is_sharded: bool) -> None:
    if is_sharded:
        save_index(tmp_path, SHARDS)
    else:
        save_file(TENSORS, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path, dtype=torch.bfloat16)
    got = checkpoint.read("a.weight", slice(1, 3), slice(2, None))
    assert torch.equal(got, TENSORS["a.weight"][1:3, 2:].bfloat16())
    assert got.is_contiguous()


def test_what_was_read_does_not_change_with_the_file(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    got = open_checkpoint(tmp_path).read("a.weight", slice(None))
    with open(tmp_path / "model.safetensors", "r+b") as file:
        size = file.seek(0, 2)
        file.seek(size - 4 * 29)
        file.write(bytes(4 * 29))
    assert torch.equal(got, TENSORS["a.weight"])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_file({"a.weight": TENSORS["a.weight"]}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"b\.bias is in none of the safetensors files"):
        open_checkpoint(tmp_path)


def test_an_unknown_tensor_is_named_with_its_file(tmp_path: Path) -> None:
    save_file(TENSORS | {"c.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors: the model has no tensor c\.weight"):
        open_checkpoint(tmp_path)
    assert open_checkpoint(tmp_path, {"c.weight"}).read("b.bias", slice(2)).tolist() == [0.0, 1.0]


def test_a_tensor_of_another_shape_or_kind_is_named_with_its_file(tmp_path: Path) -> None:
    save_file(TENSORS | {"b.bias": torch.zeros(4)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors: b\.bias has shape \[4\], not \[5\]"):
        open_checkpoint(tmp_path)
    save_file(TENSORS | {"b.bias": torch.zeros(5, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"b\.bias is I8; weights may be F32, F16, BF16"):
        open_checkpoint(tmp_path)


def test_files_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"holds neither model\.safetensors nor"):
        open_checkpoint(tmp_path)
    save_index(tmp_path, SHARDS)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"model-2\.safetensors is missing"):
        open_checkpoint(tmp_path)
    (tmp_path / "model-2.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(InvalidCheckpoint, match=r"model-2\.safetensors cannot be read: "):
        open_checkpoint(tmp_path)


def test_an_index_that_is_wrong_is_named(tmp_path: Path) -> None:
    save_index(tmp_path, SHARDS, **{"a.weight": "model-2.safetensors"})
    with pytest.raises(InvalidCheckpoint, match=r"model-2\.safetensors: tensor a\.weight is missing"):
        open_checkpoint(tmp_path)
    save_index(tmp_path, SHARDS, **{"a.weight": "../model-1.safetensors"})
    with pytest.raises(InvalidCheckpoint, match="which is no file of this folder"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InvalidCheckpoint, match="is no index of weights"):
        open_checkpoint(tmp_path)


def test_dummy_weights_are_the_same_however_they_are_cut() -> None:
    shapes = {"w": (2500, 6), "other": (2500, 6), "b": (2500,), "input_norm.weight": (10,)}
    dummy = Dummy(3, shapes, torch.float32, CPU)
    whole = dummy.read("w", slice(None))
    assert whole.shape == (2500, 6)
    for start, stop in ((0, 10), (1000, 1030), (1024, 2048), (100, 2500), (7, 7)):
        assert torch.equal(dummy.read("w", slice(start, stop)), whole[start:stop])
        assert torch.equal(dummy.read("w", slice(start, stop), slice(2, 4)), whole[start:stop, 2:4])
    assert torch.equal(dummy.read("b", slice(1020, 1030)), dummy.read("b", slice(None))[1020:1030])
    assert dummy.read("input_norm.weight", slice(None)).eq(1).all()
    assert not torch.equal(dummy.read("other", slice(None)), whole)
    assert not torch.equal(Dummy(4, shapes, torch.float32, CPU).read("w", slice(None)), whole)
    assert abs(float(whole.mean())) < 1e-3
    assert 0.019 < float(whole.std()) < 0.021
