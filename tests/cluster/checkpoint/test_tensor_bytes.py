"""Tensors' bytes are read as they are stored, in order, by several threads."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cluster.checkpoint.files import StoredTensor, read_tensors
from cluster.checkpoint.tensor_bytes import bytes_of, map_tensors


def test_every_tensor_has_the_bytes_that_safetensors_loads(checkpoint: Path) -> None:
    def read(name: str, tensor: StoredTensor) -> bytes:
        with bytes_of(tensor) as data:
            return bytes(data)

    expected = load_file(checkpoint / "model.safetensors")
    found = dict(map_tensors(read_tensors(checkpoint), read, num_threads=3))
    assert list(found) == list(read_tensors(checkpoint))
    assert found == {name: bytes(tensor.flatten().view(torch.uint8).numpy()) for name, tensor in expected.items()}


def test_an_error_is_raised_when_its_tensor_comes(checkpoint: Path) -> None:
    *_, last = read_tensors(checkpoint)
    seen = []

    def fail_at_last(name: str, tensor: StoredTensor) -> int:
        if name == last:
            raise ValueError(name)
        return tensor.start

    with pytest.raises(ValueError, match=last):
        for name, _ in map_tensors(read_tensors(checkpoint), fail_at_last, num_threads=2):
            seen.append(name)
    assert seen == list(read_tensors(checkpoint))[:-1]
