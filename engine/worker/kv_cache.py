"""A rank's cache memory: keys and values of its layers, on the device and, for swapping, on the host."""

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one rank keeps of a block: keys and values of `num_layers` layers and `num_kv_heads` heads."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        elements = self.num_kv_heads * BLOCK_SIZE * self.head_dim
        return 2 * self.num_layers * elements * int(self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class KVCache:
    """A layer's (keys, values) each [num_blocks, K, 16, head_dim]; all zero at first. Device block 0 is the null block."""

    device: list[tuple[Tensor, Tensor]]
    host: list[tuple[Tensor, Tensor]]


def make_cache(shape: CacheShape, num_gpu_blocks: int, num_cpu_blocks: int, device: torch.device) -> KVCache:
    """Raises torch.OutOfMemoryError."""
    on_cpu = torch.device("cpu")
    return KVCache(
        device=_layers(shape, num_gpu_blocks, device, pinned=False),
        host=_layers(shape, num_cpu_blocks, on_cpu, pinned=device.type == "cuda"),
    )


def _layers(shape: CacheShape, num_blocks: int, device: torch.device, *, pinned: bool) -> list[tuple[Tensor, Tensor]]:
    size = (num_blocks, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)

    def zeros() -> Tensor:
        if device.type == "cpu" and not pinned and num_blocks:
            return _untouched_zeros(size, shape.dtype)
        return torch.zeros(size, dtype=shape.dtype, device=device, pin_memory=pinned)

    return [(zeros(), zeros()) for _ in range(shape.num_layers)]


def _untouched_zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Host memory that becomes real page by page, as blocks are used; begins at a page."""
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(size)
