"""Memory for packed weights: pieces of large mappings with huge pages, because a step reads all of
it and small pages cost time.
"""

import mmap
import threading
from contextlib import suppress

import torch
from torch import Tensor

_CHUNK_BYTES = 32 << 20
_HUGE_PAGE_BYTES = 2 << 20
_ALIGNMENT = 64


class Arena:
    """Cuts pieces from chunks; a chunk is freed with its last piece. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._num_taken = 0  # bytes of the chunk

    def take(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, aligned to a cache line, uninitialized."""
        wanted = _rounded(num_bytes)
        with self._lock:
            if self._num_taken + wanted > self._chunk.numel():
                self._chunk = _map(max(wanted, _CHUNK_BYTES))
                self._num_taken = 0
            piece = self._chunk[self._num_taken : self._num_taken + num_bytes]
            self._num_taken += wanted
        return piece

    def give_back(self, piece: Tensor) -> None:
        """Return an unused piece; of effect only if no other piece was taken since."""
        wanted = _rounded(piece.numel())
        with self._lock:
            if piece.data_ptr() + wanted == self._chunk.data_ptr() + self._num_taken:
                self._num_taken -= wanted


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _map(num_bytes: int) -> Tensor:
    # One more page, so that the chunk can be aligned to huge pages.
    size = -(-num_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    pages = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system may have none
        pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE_BYTES
    return whole[start : start + size]
