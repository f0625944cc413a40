"""Reads the bytes of stored tensors, several tensors at once."""

import mmap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from cluster.checkpoint.files import StoredTensor

Result = TypeVar("Result")


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
