"""The memory of tapes' tensors."""

import math
import weakref

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64


class TapeMemory:
    """Gives a tensor's memory to later ones as soon as nothing refers to it any more, on the same
    tape or on another.

    That is safe since a tape's kernels run one after the other, and one tape at a time. A thread
    that has lost its core may still read what a later kernel has overwritten, but writes nothing
    (`may_write`, `src/threads.h`).
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}

    @property
    def num_free_bytes(self) -> int:
        return sum(size * len(chunks) for size, chunks in self._free.items())

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Contiguous, of any content."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes == 0:
            return torch.empty(shape, dtype=dtype)
        size = 1 << max(num_bytes - 1, _ALIGNMENT - 1).bit_length()  # steps of all sizes find each other's
        free = self._free.setdefault(size, [])
        chunk = free.pop() if free else _aligned(size)
        taken = chunk[:num_bytes]
        # torch keeps `taken` for as long as any tensor or view has this storage.
        weakref.finalize(taken, free.append, chunk)
        return torch.frombuffer(taken, dtype=dtype).view(shape)


def _aligned(size: int) -> np.ndarray:
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]
