"""Where weights come from: safetensors files, of which each rank reads its own slices, or a seed."""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from parallel.errors import InvalidCheckpoint

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")
DUMMY_ROWS = 1024  # rows of a dummy tensor that are drawn at once
DUMMY_RANGE = 0.02 * 3**0.5  # uniform numbers up to this have the standard deviation 0.02

Shapes = dict[str, tuple[int, ...]]


class Weights(Protocol):
    """The model's tensors by name."""

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        """A slice of a tensor: a contiguous tensor of its own, in the model's dtype and on its device."""


class Checkpoint:
    """The safetensors files of a folder in Hugging Face layout: one file, or several and an index.

    `shapes` are the tensors that the model has; those in `unused` may also be there. Raises InvalidCheckpoint naming file
    and tensor if one is missing, unknown, of another shape or not of floating point.
    """

    def __init__(self, folder: str, shapes: Shapes, unused: set[str], dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.tensors: dict[str, Any] = {}  # name -> safetensors slice
        for path, names in _files(Path(folder)).items():
            stored = _open(path)
            for name in sorted(names - stored.keys()):
                raise InvalidCheckpoint(f"{path}: tensor {name} is missing, though {INDEX_FILE} says it is there")
            for name, tensor in stored.items():
                if name not in unused:
                    _check(path, name, tensor, shapes)
            self.tensors |= stored
        for name in shapes:
            if name not in self.tensors:
                raise InvalidCheckpoint(f"{folder}: tensor {name} is in none of the safetensors files")

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        part = self.tensors[name][rows if columns is None else (rows, columns)]
        return part.to(self.device, self.dtype, copy=True, memory_format=torch.contiguous_format)


class Dummy:
    """Random weights, a function of seed and name alone: the same values however they are cut. Norms are ones."""

    def __init__(self, seed: int, shapes: Shapes, dtype: torch.dtype, device: torch.device) -> None:
        self.seed = seed
        self.shapes = shapes
        self.dtype = dtype
        self.device = device

    def read(self, name: str, rows: slice, columns: slice | None = None) -> Tensor:
        num_rows, *width = self.shapes[name]
        start, stop, _ = rows.indices(num_rows)
        index = slice(None) if columns is None else (slice(None), columns)
        if name.endswith("norm.weight"):
            return torch.ones(stop - start, dtype=self.dtype, device=self.device)
        parts = [torch.empty(0, *width, dtype=self.dtype)[index]]
        for first in range(start - start % DUMMY_ROWS, stop, DUMMY_ROWS):
            drawn = self._draw(name, first, (min(DUMMY_ROWS, num_rows - first), *width))
            parts.append(drawn[max(start - first, 0) : stop - first][index].to(self.dtype))
        return torch.cat(parts).to(self.device)

    def _draw(self, name: str, first: int, shape: tuple[int, ...]) -> Tensor:
        key = blake2b(f"{self.seed} {name} {first}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little", signed=True))
        return torch.empty(shape).uniform_(-DUMMY_RANGE, DUMMY_RANGE, generator=generator)


def _files(folder: Path) -> dict[Path, set[str]]:
    """The weight files of a folder, and the tensors that its index says are in each."""
    if (folder / SINGLE_FILE).exists():
        return {folder / SINGLE_FILE: set()}
    index = folder / INDEX_FILE
    if not index.exists():
        raise InvalidCheckpoint(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}; weights are read from those")
    try:
        entries = list(json.loads(index.read_text(encoding="utf-8"))["weight_map"].items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidCheckpoint(f"{index} is no index of weights: {error!r}") from None
    files: dict[Path, set[str]] = {}
    for name, file in entries:
        if not isinstance(file, str) or Path(file).name != file:
            raise InvalidCheckpoint(
                f"{index}: tensor {name} is said to be in {file!r}, which is no file of this folder"
            )
        files.setdefault(folder / file, set()).add(name)
    return files


def _open(path: Path) -> dict[str, Any]:
    """The tensors of a file, unread."""
    try:
        file = safe_open(path, framework="pt")
        return {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path} is missing") from None
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error}") from None


def _check(path: Path, name: str, tensor: Any, shapes: Shapes) -> None:
    if name not in shapes:
        raise InvalidCheckpoint(f"{path}: the model has no tensor {name}")
    if tuple(tensor.get_shape()) != shapes[name]:
        raise InvalidCheckpoint(f"{path}: {name} has shape {list(tensor.get_shape())}, not {list(shapes[name])}")
    if tensor.get_dtype() not in FLOATS:
        raise InvalidCheckpoint(f"{path}: {name} is {tensor.get_dtype()}; weights may be {', '.join(FLOATS)}")
