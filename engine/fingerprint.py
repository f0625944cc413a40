"""What tokens depend on beside the request: named facts, and a short word for all of them.

Two engines with the same word answer a request with the same tokens, to the last bit of the
logprobs; so a request that has tokens goes on only where the word is the same. Ranks, batches and
cache sizes are no part of it: exact results do not depend on them.
"""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.manifest import MANIFEST_FILE

# A tensor's bytes are looked at in so many places, evenly spread, its ends among them.
NUM_SAMPLES, SAMPLE_BYTES = 8, 64
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Offer:
    """What a process can compute with, before it is told which of it."""

    backend: str  # of ops
    levels: tuple[str, ...]  # instruction sets or device generations, the best first
    reason: str | None = None  # why the backend is not a faster one


def fingerprint(arithmetic: Mapping[str, str]) -> str:
    """Of facts by name."""
    facts = json.dumps(dict(sorted(arithmetic.items())))
    return f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def weights_digest(folder: str) -> str:
    """Of a checkpoint's numbers, cheaply: of its manifest where there is one, which is verified
    when weights are loaded.

    Else of config.json and, of each weight file, the size, the header, and samples of every tensor.
    So another model, another training or another layout is seen; a few changed numbers between the
    samples are not.
    """
    root, digest = Path(folder), hashlib.sha256()
    _add(digest, root / "config.json")
    manifest = root / MANIFEST_FILE
    if manifest.exists():
        _add(digest, manifest)
        return digest.hexdigest()[:16]
    for path in sorted(root.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        _add_samples(digest, path)
    return digest.hexdigest()[:16]


def tokenizer_digest(folder: str) -> str:
    """Of the files that make tokens of texts and conversations."""
    digest = hashlib.sha256()
    for name in _TOKENIZER_FILES:
        _add(digest, Path(folder) / name)
    return digest.hexdigest()[:16]


def _add(digest: "hashlib._Hash", path: Path) -> None:
    data = path.read_bytes() if path.exists() else b""
    digest.update(f"{path.name} {len(data)} ".encode() + data)


def _add_samples(digest: "hashlib._Hash", path: Path) -> None:
    """The header of a file in the format of safetensors, and samples of its tensors."""
    with path.open("rb") as file:
        (header_size,) = struct.unpack("<Q", file.read(8))
        header = file.read(header_size)
        digest.update(header)
        for tensor in json.loads(header).values():
            start, stop = tensor.get("data_offsets", (0, 0))  # of "__metadata__" there are none
            for sample in range(NUM_SAMPLES if stop > start else 0):
                offset = start + max(stop - start - SAMPLE_BYTES, 0) * sample // (NUM_SAMPLES - 1)
                digest.update(os.pread(file.fileno(), min(SAMPLE_BYTES, stop - offset), 8 + header_size + offset))
