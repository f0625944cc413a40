"""Reads all weights before anything starts, to find errors that headers cannot show.

A worker checks what it loads in the same way (`parallel/weights`), on its own node; this is for
checkpoints that can be read faster than Ray starts.
"""

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cluster.checkpoint.files import StoredTensor, read_tensors
from cluster.checkpoint.spec import read_spec
from engine.checkpoint.manifest import MANIFEST_FILE, Manifest
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig

MAX_BYTES = 4 << 30  # two cores read that in a few seconds
PIECE_BYTES = 1 << 20  # hashed and checked while it is in a core's cache
# Exponent bits, which are all set in NaN and infinity, by the type's name in headers.
_EXPONENTS: dict[str, int] = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}

Result = TypeVar("Result")


def check_values(config: EngineConfig) -> bool:
    """Raises InvalidConfig naming the first of the model's tensors that is not finite or differs
    from the manifest. The headers were checked before (`plan.check_weights`). Returns False if
    there is so much data that the workers have to check it.
    """
    if config.load_format == "dummy":
        return True
    model = ModelConfig.load(config.model)
    stored = read_tensors(Path(config.model))
    tensors = {name: stored[name] for name in read_spec(model, config.model).shapes()}
    if sum(tensor.stop - tensor.start for tensor in tensors.values()) > MAX_BYTES:
        return False
    manifest = Manifest.load(config.model)
    digests = {} if manifest is None else manifest.tensors
    num_threads = len(os.sched_getaffinity(0))
    for name, problem in map_tensors(tensors, lambda name, tensor: _problem(tensor, digests.get(name)), num_threads):
        if problem is not None:
            raise InvalidConfig(f"{tensors[name].path}: tensor {name} {problem}")
    return True


def map_tensors(
    tensors: Mapping[str, StoredTensor], work: Callable[[str, StoredTensor], Result], num_threads: int
) -> Iterator[tuple[str, Result]]:
    """Each name and work(name, tensor), in order, computed by that many threads: hashlib and numpy
    release the interpreter lock.
    """
    with ThreadPoolExecutor(num_threads, thread_name_prefix="weights") as threads:
        results: dict[str, Future[Result]] = {
            name: threads.submit(work, name, tensor) for name, tensor in tensors.items()
        }
        try:
            for name, result in results.items():
                yield name, result.result()
        finally:
            threads.shutdown(cancel_futures=True)


@contextmanager
def bytes_of(tensor: StoredTensor) -> Iterator[memoryview]:
    """A tensor's bytes, as they are in its file."""
    with (
        tensor.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
        view[tensor.start : tensor.stop] as part,
    ):
        yield part


def _problem(tensor: StoredTensor, digest: str | None) -> str | None:
    """What is wrong with its bytes; `digest`: the expected one, if it is known."""
    sha256 = hashlib.sha256()
    is_finite = True
    with bytes_of(tensor) as data:
        for start in range(0, len(data), PIECE_BYTES):
            with data[start : start + PIECE_BYTES] as piece:
                if digest is not None:
                    sha256.update(piece)
                is_finite &= _is_finite(bytes(piece), tensor.dtype)
    if digest not in (None, sha256.hexdigest()):
        return f"has changed since {MANIFEST_FILE} was made"
    return None if is_finite else f"holds NaN or infinity, as {tensor.dtype}"


def _is_finite(data: bytes, dtype: str) -> bool:
    """Whether no number has all exponent bits set."""
    numbers: NDArray[np.unsignedinteger[Any]] = np.frombuffer(data, np.uint32 if dtype == "F32" else np.uint16)
    return bool((numbers & _EXPONENTS[dtype]).max() < _EXPONENTS[dtype])
