"""Reads all weights before anything starts, to find errors that headers cannot show.

A worker checks what it loads in the same way (`parallel/weights`), on its own node; this is for
checkpoints that can be read faster than Ray starts.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

from cluster.checkpoint.files import StoredTensor, read_tensors
from cluster.checkpoint.spec import read_spec
from cluster.checkpoint.tensor_bytes import bytes_of, map_tensors
from engine.checkpoint.manifest import MANIFEST_FILE, Manifest
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig

MAX_BYTES = 4 << 30  # two cores read that in a few seconds
PIECE_BYTES = 1 << 20  # hashed and checked while it is in a core's cache
# Exponent bits, which are all set in NaN and infinity, by the type's name in headers.
_EXPONENTS: dict[str, int] = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}


def check_values(config: EngineConfig) -> bool:
    """Raises InvalidConfig naming the first of the model's tensors that is not finite or differs
    from the manifest. The headers were checked before (`manifest.check_weights`). Returns False if
    there is so much data that the workers have to check it.
    """
    if config.load_format == "dummy":
        return True
    model = ModelConfig.load(config.model)
    stored = read_tensors(Path(config.model))
    tensors = {name: stored[name] for name in read_spec(model, config.model).forms()}
    if sum(tensor.stop - tensor.start for tensor in tensors.values()) > MAX_BYTES:
        return False
    manifest = Manifest.load(config.model)
    digests = {} if manifest is None else manifest.tensors
    num_threads = len(os.sched_getaffinity(0))
    for name, problem in map_tensors(tensors, lambda name, tensor: _problem(tensor, digests.get(name)), num_threads):
        if problem is not None:
            raise InvalidConfig(f"{tensors[name].path}: tensor {name} {problem}")
    return True


def _problem(tensor: StoredTensor, digest: str | None) -> str | None:
    """What is wrong with its bytes; `digest`: the expected one, if it is known."""
    sha256 = hashlib.sha256()
    all_finite = True
    with bytes_of(tensor) as data:
        for start in range(0, len(data), PIECE_BYTES):
            with data[start : start + PIECE_BYTES] as piece:
                if digest is not None:
                    sha256.update(piece)
                all_finite &= is_finite(bytes(piece), tensor.dtype)
    if digest not in (None, sha256.hexdigest()):
        return f"has changed since {MANIFEST_FILE} was made"
    return None if all_finite else f"holds NaN or infinity, as {tensor.dtype}"


def is_finite(data: bytes, dtype: str) -> bool:
    """Whether no number has all exponent bits set. Integers have none; of float8, all bits but the
    sign mean NaN.
    """
    if dtype == "F8_E4M3":
        return bool(((np.frombuffer(data, np.uint8) & 0x7F) != 0x7F).all())
    if dtype not in _EXPONENTS:
        return True
    numbers: np.ndarray = np.frombuffer(data, np.uint32 if dtype == "F32" else np.uint16)
    return bool((numbers & _EXPONENTS[dtype]).max() < _EXPONENTS[dtype])
