"""A rank's cache memory: keys and values of its layers, on the device and, for swapping, on the
host.
"""

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.worker.pinned import pinned_zeros

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one rank keeps of a block: keys and values of `num_layers` layers and `num_kv_heads`
    heads.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        return 2 * self.num_layers * math.prod(self.of(1)) * int(self.dtype.itemsize)

    def of(self, num_blocks: int) -> tuple[int, int, int, int]:
        """The shape of a layer's keys, or values."""
        return num_blocks, self.num_kv_heads, BLOCK_SIZE, self.head_dim


@dataclass(frozen=True, slots=True)
class KVCache:
    """A layer's (keys, values) each [num_blocks, K, 16, head_dim]; all zero at first. Device block
    0 is the null block.
    """

    device: list[tuple[Tensor, Tensor]]
    host: list[tuple[Tensor, Tensor]]


def make_cache(shape: CacheShape, num_gpu_blocks: int, num_cpu_blocks: int, device: torch.device) -> KVCache:
    """Raises torch.OutOfMemoryError."""
    host = _pinned_layers if device.type == "cuda" else _layers
    return KVCache(_layers(shape, num_gpu_blocks, device), host(shape, num_cpu_blocks, torch.device("cpu")))


def _layers(shape: CacheShape, num_blocks: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    size = shape.of(num_blocks)

    def zeros() -> Tensor:
        if device.type == "cpu" and num_blocks:
            return _untouched_zeros(size, shape.dtype)
        return torch.zeros(size, dtype=shape.dtype, device=device)

    return [(zeros(), zeros()) for _ in range(shape.num_layers)]


def _pinned_layers(shape: CacheShape, num_blocks: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Parts of one memory: pages are pinned in one call."""
    if not num_blocks:
        return _layers(shape, 0, device)
    memory = pinned_zeros(num_blocks * shape.block_bytes, torch.cuda.cudart())
    tensors = memory.view(shape.dtype).view(shape.num_layers, 2, *shape.of(num_blocks))
    return [(keys, values) for keys, values in tensors]


def _untouched_zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Host memory that becomes real page by page, as blocks are used; begins at a page."""
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(size)
