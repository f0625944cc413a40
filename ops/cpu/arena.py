"""Memory for packed weights: pieces of large mappings of huge pages, since a step reads all of it and pages cost it time."""

import mmap
import threading

import torch
from torch import Tensor

_CHUNK_BYTES = 32 << 20
_HUGE_PAGE_BYTES = 2 << 20
_ALIGNMENT = 64


class Arena:
    """Cuts pieces from chunks; a chunk goes when the last of its pieces does. Any thread may take one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, whose first byte lies on a cache line. Its contents are undefined."""
        wanted = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            if wanted > self._rest.numel():
                self._rest = _map(max(wanted, _CHUNK_BYTES))
            piece, self._rest = self._rest[:num_bytes], self._rest[wanted:]
        return piece


def _map(num_bytes: int) -> Tensor:
    # One page more, so that a whole number of them can begin where a huge page does.
    size = -(-num_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    pages = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE_BYTES
    return whole[start : start + size]
