from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from parallel.weights import Checkpoint, Dummy
from tests.parallel.checkpoints import SHAPES, SHARDS, TENSORS, save_index

CPU = torch.device("cpu")


def open_checkpoint(folder: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    return Checkpoint(str(folder), SHAPES, frozenset(), dtype, CPU, {})


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
