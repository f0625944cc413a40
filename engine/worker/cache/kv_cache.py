"""A rank's cache memory: keys and values of its layers, and the token ids that they are of, on the
device and, for swapping, on the host.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.worker.device.device import Device

BLOCK_SIZE = 16
TOKEN_BYTES = 4 * BLOCK_SIZE  # of the token ids of a block


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
    token_ids: Tensor  # [num_blocks, 16] int32, on the device; of no use but to stages that sample
    host_token_ids: Tensor
    host_memory: Tensor  # [2 * layers, num_blocks, *] uint8, the bytes of `host`

    @property
    def num_blocks(self) -> int:
        """On the device."""
        return len(self.token_ids)

    @property
    def host_block_bytes(self) -> int:
        return self.host_memory.shape[0] * self.host_memory.shape[2] + TOKEN_BYTES

    def host_bytes(self, block: int) -> bytes:
        """A copy of all that a host block is."""
        layers: bytes = self.host_memory[:, block].numpy().tobytes()
        return layers + self.host_token_ids[block].numpy().tobytes()

    def fill_host(self, block: int, data: bytes) -> None:
        """The reverse of `host_bytes`."""
        array = np.frombuffer(data, np.uint8)
        layers, token_ids = array[:-TOKEN_BYTES], array[-TOKEN_BYTES:]
        self.host_memory.numpy()[:, block] = layers.reshape(len(self.host_memory), -1)
        self.host_token_ids.numpy()[block] = token_ids.view(np.int32)

    def moved(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All that a block is: each tensor on the device, and its counterpart on the host."""
        for on_device, on_host in zip(self.device, self.host, strict=True):
            yield from zip(on_device, on_host, strict=True)
        yield self.token_ids, self.host_token_ids


def joined(cache: KVCache, draft: KVCache) -> KVCache:
    """A model's cache with that of its draft model, as one: their blocks move together."""
    return replace(cache, device=cache.device + draft.device, host=cache.host + draft.host)


def make_draft_cache(shape: CacheShape, cache: KVCache, num_cpu_blocks: int, device: Device) -> KVCache:
    """Of a draft model, beside the cache of its model, whose token ids it has. Raises
    torch.OutOfMemoryError.
    """
    own = make_cache(shape, len(cache.token_ids), num_cpu_blocks, device)
    return replace(own, token_ids=cache.token_ids, host_token_ids=cache.host_token_ids)


def make_cache(shape: CacheShape, num_gpu_blocks: int, num_cpu_blocks: int, device: Device) -> KVCache:
    """Raises torch.OutOfMemoryError."""
    size = shape.of(num_gpu_blocks)
    on_device = [(device.zeros(size, shape.dtype), device.zeros(size, shape.dtype)) for _ in range(shape.num_layers)]
    token_ids = device.zeros((num_gpu_blocks, BLOCK_SIZE), torch.int32)
    on_host, host_token_ids, host_memory = _on_host(shape, num_cpu_blocks, device)
    return KVCache(on_device, on_host, token_ids, host_token_ids, host_memory)


def _on_host(shape: CacheShape, num_blocks: int, device: Device) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """Parts of one memory: pages are pinned in one call."""
    size = num_blocks * shape.block_bytes
    memory = device.host_zeros(size + num_blocks * TOKEN_BYTES) if num_blocks else torch.zeros(0, dtype=torch.uint8)
    tensors = memory[:size].view(shape.dtype).view(shape.num_layers, 2, *shape.of(num_blocks))
    host_token_ids = memory[size:].view(torch.int32).view(num_blocks, BLOCK_SIZE)
    layers = memory[:size].view(2 * shape.num_layers, num_blocks, shape.block_bytes // (2 * shape.num_layers))
    return [(keys, values) for keys, values in tensors], host_token_ids, layers
