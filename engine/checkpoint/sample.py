"""Samples of a checkpoint's numbers, by which its fingerprint tells it from others: each node takes
those of the weight files that it has, and together they are of all.
"""

import hashlib
import json
import os
import struct
from pathlib import Path

from engine.checkpoint.fingerprint import Sample, add_file
from engine.checkpoint.headless import INDEX
from engine.checkpoint.json_file import read_json
from engine.checkpoint.manifest import MANIFEST_FILE
from engine.errors import InvalidConfig

SINGLE_FILE = "model.safetensors"
# Number of places at which a tensor's bytes are sampled, evenly spread, including both ends.
NUM_SAMPLES, SAMPLE_BYTES = 8, 64


def sample_of(folder: str) -> Sample:
    """Of config.json, and of the manifest if there is one, which is verified when weights are
    loaded. Otherwise of each weight file the size, the header, and samples of every tensor. This
    detects another model, another training or another layout, but not a few changed numbers between
    the samples. Raises InvalidConfig, OSError.
    """
    root, digest = Path(folder), hashlib.sha256()
    add_file(digest, root / "config.json")
    manifest = root / MANIFEST_FILE
    if manifest.exists():
        add_file(digest, manifest)
        return Sample(digest.hexdigest()[:16], {})
    return Sample(digest.hexdigest()[:16], {name: _sample(root / name) for name in _weight_files(root)})


def weights_digest(folder: str) -> str:
    """Of a folder that has all files: see `sample_of`."""
    return sample_of(folder).digest


def _weight_files(folder: Path) -> list[str]:
    """The names of those that are read. Raises InvalidConfig if any is not of this folder."""
    if (folder / SINGLE_FILE).exists() or not (folder / INDEX).exists():
        return [SINGLE_FILE] if (folder / SINGLE_FILE).exists() else []
    weight_map = read_json(folder / INDEX).get("weight_map")
    names = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
    for name in names:
        if Path(name).name != name or name in ("", ".."):
            raise InvalidConfig(f"{folder / INDEX} names {name!r}, which is not a file name in this folder")
    return names


def _sample(path: Path) -> str | None:
    """The size and header of a file in the format of safetensors, and samples of its tensors."""
    if not path.exists():
        return None
    digest = hashlib.sha256(f"{path.stat().st_size} ".encode())
    with path.open("rb") as file:
        (header_size,) = struct.unpack("<Q", file.read(8))
        header = file.read(header_size)
        digest.update(header)
        for tensor in json.loads(header).values():
            start, stop = tensor.get("data_offsets", (0, 0))  # of "__metadata__" there are none
            for sample in range(NUM_SAMPLES if stop > start else 0):
                offset = start + max(stop - start - SAMPLE_BYTES, 0) * sample // (NUM_SAMPLES - 1)
                digest.update(os.pread(file.fileno(), min(SAMPLE_BYTES, stop - offset), 8 + header_size + offset))
    return digest.hexdigest()
