"""The safetensors files of a folder in Hugging Face layout: one file, or several and an index."""

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from parallel.errors import InvalidCheckpoint
from parallel.spec.stored import INDEX_FILE, SINGLE_FILE, Forms, as_the_model_names, complaint, is_file_name


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is, and its shape and dtype according to the header."""

    path: Path
    file: Any  # of safe_open
    name: str  # in the file
    shape: tuple[int, ...]
    dtype: str  # in safetensors' notation


def stored_tensors(
    folder: Path, forms: Forms, unused: Set[str], own: tuple[str, ...] = ("",)
) -> dict[str, StoredTensor]:
    """The folder's tensors, unread, by name. `forms` are those that the model has; those in
    `unused` may also be there. `own`: how the names begin of those that will be read; a file
    without such may be absent.

    Raises InvalidCheckpoint naming file and tensor if one is missing, unknown, of another shape, or
    not of floating point.
    """
    files = _files(folder)
    listed = {name: path for path, names in files.items() for name in names}
    elsewhere = _elsewhere(as_the_model_names(listed), own)
    tensors: dict[str, StoredTensor] = {}
    for path, names in files.items():
        if path in elsewhere.values():
            continue
        stored = _open(path)
        for name in sorted(names - stored.keys()):
            raise InvalidCheckpoint(f"{path}: tensor {name} is missing, though {INDEX_FILE} says it is there")
        tensors |= stored
    tensors = as_the_model_names(tensors, listed.keys())
    if (wrong := complaint(folder, tensors, forms, unused, elsewhere.keys())) is not None:
        raise InvalidCheckpoint(wrong)
    return tensors


def _elsewhere(listed: Mapping[str, Path], own: tuple[str, ...]) -> dict[str, Path]:
    """The tensors in files that are not in the folder and have nothing of this rank."""
    needed = {path for name, path in listed.items() if name.startswith(own)}
    absent = {path for path in set(listed.values()) - needed if not path.exists()}
    return {name: path for name, path in listed.items() if path in absent}


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
        if not is_file_name(file):
            raise InvalidCheckpoint(
                f"{index}: tensor {name} is said to be in {file!r}, which is no file of this folder"
            )
        files.setdefault(folder / file, set()).add(name)
    return files


def _open(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, unread."""
    try:
        file = safe_open(path, framework="pt")
        names = list(file.keys())
        slices = {name: file.get_slice(name) for name in names}
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path} is missing") from None
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error}") from None
    return {
        name: StoredTensor(path, file, name, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()
    }
