"""Makes a checkpoint's manifest, and compares a folder with it: small files and headers before a
start, everything by `squadron checkpoint verify`.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.checkpoint.files import (
    StoredTensor,
    check_tensors,
    header_bytes,
    read_tensors,
    weight_files,
)
from cluster.checkpoint.tensor_bytes import bytes_of, map_tensors
from engine.checkpoint.manifest import MANIFEST_FILE, Manifest
from engine.errors import InvalidConfig
from parallel.spec.decoder import DecoderConfig
from parallel.spec.stored import INDEX_FILE

# The files that are read beside the weights, if they exist.
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    INDEX_FILE,
)
# Also read; a manifest that lists none of them may be older than that, and does not count for them.
LATER_FILES = ("added_tokens.json", "special_tokens_map.json")

Progress = Callable[[int], object]  # called with numbers of hashed bytes


def make_manifest(folder: Path, num_threads: int, progress: Progress) -> Manifest:
    """Digests of the folder's files and tensors; raises InvalidConfig if a weight file cannot be
    read.
    """
    tensors = read_tensors(folder)
    return Manifest(
        files={name: _file_digest(folder / name) for name in (*SMALL_FILES, *LATER_FILES) if (folder / name).exists()},
        headers={path.name: _header_digest(path) for path in weight_files(folder)},
        tensors=dict(_tensor_digests(tensors, num_threads, progress)),
    )


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """As a whole: half a manifest would refuse every start."""
    path = folder / MANIFEST_FILE
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def check_weights(model_folder: str, spec: DecoderConfig) -> None:
    """Raises InvalidConfig unless the weight files' headers list the model's tensors and match the
    manifest.
    """
    folder = Path(model_folder)
    check_tensors(folder, read_tensors(folder), spec.forms(), spec.unused)
    manifest = Manifest.load(model_folder)
    if manifest is not None:
        check_small_parts(folder, manifest)


def check_small_parts(folder: Path, manifest: Manifest) -> None:
    """Raises InvalidConfig unless everything but the weights themselves matches the manifest."""
    later = () if manifest.files.keys().isdisjoint(LATER_FILES) else LATER_FILES
    for name in (*SMALL_FILES, *later):
        path = folder / name
        if path.exists() != (name in manifest.files):
            problem = "is not listed in" if path.exists() else "does not exist, but is listed in"
            raise InvalidConfig(f"{path} {problem} {MANIFEST_FILE}")
        if path.exists() and _file_digest(path) != manifest.files[name]:
            raise InvalidConfig(f"{path} has changed since {MANIFEST_FILE} was made")
    paths = list(weight_files(folder))
    for path in paths:
        if _header_digest(path) != manifest.headers.get(path.name):
            raise InvalidConfig(f"{path}: its header has changed since {MANIFEST_FILE} was made")
    for name in sorted(manifest.tensors.keys() ^ read_tensors(folder).keys()):
        raise InvalidConfig(f"only one of {folder / MANIFEST_FILE} and the weight files has tensor {name}")


def verify_tensors(folder: Path, manifest: Manifest, num_threads: int, progress: Progress) -> None:
    """Raises InvalidConfig naming the first tensor, in file order, whose bytes have changed."""
    tensors = read_tensors(folder)
    for name, digest in _tensor_digests(tensors, num_threads, progress):
        if digest != manifest.tensors[name]:
            raise InvalidConfig(f"{tensors[name].path}: tensor {name} has changed since {MANIFEST_FILE} was made")


def whole_digest(folder: Path, sample: str) -> str:
    """Of every number: `sample`, which is of the manifest if there is one, whose digests ranks
    verify; otherwise of all that is read here.
    """
    if Manifest.load(str(folder)) is not None:
        return sample
    made = make_manifest(folder, len(os.sched_getaffinity(0)), lambda _: None)
    return hashlib.sha256(made.model_dump_json().encode()).hexdigest()[:16]


def _tensor_digests(
    tensors: dict[str, StoredTensor], num_threads: int, progress: Progress
) -> Iterator[tuple[str, str]]:
    """Name and digest, in order."""
    for name, digest in map_tensors(tensors, lambda _, tensor: _tensor_digest(tensor), num_threads):
        yield name, digest
        progress(tensors[name].stop - tensors[name].start)


def _tensor_digest(tensor: StoredTensor) -> str:
    with bytes_of(tensor) as data:
        return hashlib.sha256(data).hexdigest()


def _header_digest(path: Path) -> str:
    return hashlib.sha256(header_bytes(path)).hexdigest()


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
