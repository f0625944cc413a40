"""Headers of safetensors files, read and checked before anything starts, without reading a
weight.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.json_file import read_json
from engine.checkpoint.other_formats import told_by
from engine.errors import InvalidConfig
from parallel.spec.stored import (
    DTYPE_BYTES,
    INDEX_FILE,
    SINGLE_FILE,
    Forms,
    as_the_model_names,
    complaint,
    is_file_name,
)

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
LFS_POINTER = b"version https://git-lfs"
LENGTH_BYTES = 8  # of the header's length, at the beginning of a file
OF_OLDER_TOOLS = ("quantize_config.json", "quant_config.json")  # of quantizers; only config.json is read


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file's header describes it; `start` and `stop` in bytes of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder's weight files, by the model's name for it. Raises InvalidConfig
    naming the file, and the tensor if there is one.
    """
    tensors: dict[str, StoredTensor] = {}
    for path, promised in weight_files(folder).items():
        try:
            stored = read_header(path)
        except OSError as error:
            raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
        for name in sorted(promised - stored.keys()):
            raise InvalidConfig(f"{path}: tensor {name} is missing, though {INDEX_FILE} says it is there")
        for name in sorted(tensors.keys() & stored.keys()):
            raise InvalidConfig(f"{path}: tensor {name} is also in {tensors[name].path.name}")
        tensors |= stored
    return as_the_model_names(tensors)


def check_tensors(folder: Path, tensors: Mapping[str, StoredTensor], forms: Forms, unused: frozenset[str]) -> None:
    """Raises InvalidConfig unless exactly the tensors of `forms` exist; those of `unused` may
    exist too.
    """
    if (wrong := complaint(folder, tensors, forms, unused)) is not None:
        raise InvalidConfig(wrong + _unread(folder))


def _unread(folder: Path) -> str:
    """What may be wrong if the tensors are others than config.json says."""
    found = [name for name in OF_OLDER_TOOLS if (folder / name).exists()]
    if not found or "quantization_config" in read_json(folder / "config.json"):
        return ""
    return (
        f"; {found[0]} is not read: if it says how the weights are quantized, its fields belong into config.json's "
        "quantization_config, with quant_method"
    )


def weight_files(folder: Path) -> dict[Path, set[str]]:
    """The weight files of a folder, and the tensors that its index lists for each; raises
    InvalidConfig.
    """
    if (folder / SINGLE_FILE).exists():
        return {folder / SINGLE_FILE: set()}
    index = folder / INDEX_FILE
    if not index.exists():
        what = told_by(path.name for path in folder.glob("*")) or "load_format=dummy serves random weights"
        raise InvalidConfig(f"{folder / SINGLE_FILE} does not exist, nor does {INDEX_FILE}; {what}")
    try:
        weight_map = list(json.loads(index.read_text(encoding="utf-8"))["weight_map"].items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidConfig(f"{index} has no weight_map: {error!r}") from None
    files: dict[Path, set[str]] = {}
    for name, file in weight_map:
        if not is_file_name(file):
            raise InvalidConfig(f"{index}: names {file!r} for tensor {name}, which is not a file name in this folder")
        files.setdefault(folder / file, set()).add(name)
    missing = [path for path in sorted(files) if not os.path.exists(path)]  # also of names that are too long
    if missing:
        raise InvalidConfig(
            f"{missing[0]} does not exist ({len(missing)} of {len(files)} weight files are missing), and tensor "
            f"{min(files[missing[0]])} is in it; load_format=dummy serves random weights"
        )
    return files


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, in file order; raises InvalidConfig, OSError."""
    size = path.stat().st_size
    text = _header_text(path, size)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path} is damaged: its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise InvalidConfig(f"{path} is damaged: its header is {type(header).__name__}, not an object")
    header.pop("__metadata__", None)
    first = LENGTH_BYTES + len(text)
    tensors = {name: _stored_tensor(path, name, entry, first) for name, entry in header.items()}
    in_order = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)))
    _check_layout(path, in_order, first, size)
    return in_order


def header_bytes(path: Path) -> bytes:
    """The bytes of the length and the header of a file whose header is valid."""
    with path.open("rb") as file:
        length = file.read(LENGTH_BYTES)
        return length + file.read(int.from_bytes(length, "little"))


def _header_text(path: Path, size: int) -> bytes:
    if size == 0:
        raise InvalidConfig(f"{path} is empty")
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            raise InvalidConfig(f"{path} is a Git LFS pointer, not the weights; `git lfs pull` fetches them")
        if len(start) < LENGTH_BYTES:
            raise InvalidConfig(f"{path} is cut off: it has {size} bytes, too few for the header's length")
        length = int.from_bytes(start[:LENGTH_BYTES], "little")
        if length > MAX_HEADER_BYTES:
            raise InvalidConfig(
                f"{path} is damaged: its header's length is {length} bytes, and the limit is {MAX_HEADER_BYTES}"
            )
        if length > size - LENGTH_BYTES:
            raise InvalidConfig(f"{path} is cut off: its header's length is {length} bytes, and the file has {size}")
        file.seek(LENGTH_BYTES)
        return file.read(length)


def _stored_tensor(path: Path, name: str, entry: Any, first: int) -> StoredTensor:
    """`first`: the byte of the file that the header's offsets are relative to."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if (
            all(isinstance(size, int) and size >= 0 for size in shape) and 0 <= start <= stop
        ):
            return StoredTensor(path, dtype, tuple(shape), first + start, first + stop)
    raise InvalidConfig(f"{path} is damaged: its header's entry of tensor {name} is {str(entry)[:200]}")


def _check_layout(path: Path, tensors: Mapping[str, StoredTensor], first: int, size: int) -> None:
    """Check that tensors follow each other without overlap or gap, have the size of their shape and
    dtype, and fill the file.
    """
    end, before = first, "the header"
    for name, tensor in tensors.items():
        num_bytes = math.prod(tensor.shape) * DTYPE_BYTES.get(tensor.dtype, 0)
        if tensor.dtype in DTYPE_BYTES and tensor.stop - tensor.start != num_bytes:
            raise InvalidConfig(
                f"{path} is damaged: tensor {name} has {tensor.stop - tensor.start} bytes, and {tensor.dtype} of shape "
                f"{list(tensor.shape)} takes {num_bytes}"
            )
        if tensor.start != end:
            how = "overlaps" if tensor.start < end else "does not follow"
            raise InvalidConfig(f"{path} is damaged: tensor {name} {how} {before}")
        if tensor.stop > size:
            raise InvalidConfig(f"{path} is cut off: tensor {name} ends at byte {tensor.stop}, the file at byte {size}")
        end, before = tensor.stop, f"tensor {name}"
    if end != size:
        raise InvalidConfig(f"{path} is damaged: {before} ends at byte {end}, the file at byte {size}")
