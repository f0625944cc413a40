"""Files of a checkpoint that cannot be served are refused with the file's name and the tensor's."""

from collections.abc import Set
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from parallel.errors import InvalidCheckpoint
from parallel.weight_files import StoredTensor, stored_tensors
from tests.parallel.checkpoints import SHAPES, SHARDS, TENSORS, save_index


def stored(folder: Path, unused: Set[str] = frozenset()) -> dict[str, StoredTensor]:
    return stored_tensors(folder, SHAPES, unused)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_file({"a.weight": TENSORS["a.weight"]}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"b\.bias is in none of the safetensors files"):
        stored(tmp_path)


def test_an_unknown_tensor_is_named_with_its_file(tmp_path: Path) -> None:
    save_file(TENSORS | {"c.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors: the model has no tensor c\.weight"):
        stored(tmp_path)
    assert stored(tmp_path, {"c.weight"})["b.bias"].shape == (5,)


def test_a_tensor_of_another_shape_or_kind_is_named_with_its_file(tmp_path: Path) -> None:
    save_file(TENSORS | {"b.bias": torch.zeros(4)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors: b\.bias has shape \[4\], not \[5\]"):
        stored(tmp_path)
    save_file(TENSORS | {"b.bias": torch.zeros(5, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"b\.bias is I8; weights may be F32, F16, BF16"):
        stored(tmp_path)


def test_files_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"holds neither model\.safetensors nor"):
        stored(tmp_path)
    save_index(tmp_path, SHARDS)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"model-2\.safetensors is missing"):
        stored(tmp_path)
    (tmp_path / "model-2.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(InvalidCheckpoint, match=r"model-2\.safetensors cannot be read: "):
        stored(tmp_path)


def test_files_of_other_stages_may_be_absent(tmp_path: Path) -> None:
    save_index(tmp_path, SHARDS)
    (tmp_path / "model-2.safetensors").unlink()
    assert stored_tensors(tmp_path, SHAPES, frozenset(), own=("a.",)).keys() == {"a.weight"}
    with pytest.raises(InvalidCheckpoint, match=r"model-2\.safetensors is missing"):
        stored_tensors(tmp_path, SHAPES, frozenset(), own=("b.",))
    with pytest.raises(InvalidCheckpoint, match=r"c\.bias is in none of the safetensors files"):
        stored_tensors(tmp_path, SHAPES | {"c.bias": (1,)}, frozenset(), own=("a.",))


def test_an_index_that_is_wrong_is_named(tmp_path: Path) -> None:
    save_index(tmp_path, SHARDS, **{"a.weight": "model-2.safetensors"})
    with pytest.raises(InvalidCheckpoint, match=r"model-2\.safetensors: tensor a\.weight is missing"):
        stored(tmp_path)
    for name in ("../model-1.safetensors", "..", ""):
        save_index(tmp_path, SHARDS, **{"a.weight": name})
        with pytest.raises(InvalidCheckpoint, match="which is no file of this folder"):
            stored(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InvalidCheckpoint, match="is no index of weights"):
        stored(tmp_path)


def test_a_model_saved_without_its_head_lacks_a_prefix(tmp_path: Path) -> None:
    names = {"model.embed_tokens.weight": "embed_tokens.weight", "model.norm.weight": "norm.weight"}
    tensors = {name: torch.zeros(3) for name in names.values()}
    save_file(tensors, tmp_path / "model.safetensors")
    found = stored_tensors(tmp_path, dict.fromkeys(names, (3,)), frozenset())
    assert {name: tensor.name for name, tensor in found.items()} == names


def test_it_lacks_the_prefix_in_every_file(tmp_path: Path) -> None:
    """Also where the file that shows it is not there."""
    names = {"model.embed_tokens.weight": "embed_tokens.weight", "model.norm.weight": "norm.weight"}
    save_index(tmp_path, {f"{name}.safetensors": {name: torch.zeros(3)} for name in names.values()})
    (tmp_path / "embed_tokens.weight.safetensors").unlink()
    found = stored_tensors(tmp_path, dict.fromkeys(names, (3,)), frozenset(), own=("model.norm.",))
    assert {name: tensor.name for name, tensor in found.items()} == {"model.norm.weight": "norm.weight"}
