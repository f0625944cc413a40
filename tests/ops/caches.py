"""Caches as a backend has them, and as tests write and read them: [num_blocks, kv_heads,
block_size, head_dim], a row for each position.
"""

from torch import Tensor

from ops.cpu.library import library
from ops.interface import Ops


def laid_out(ops: Ops, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As the backend reads them."""
    if ops.NAME != "cpu":
        return keys, values
    blocks, heads, block, dim = keys.shape
    lanes, step = library().squadron_lanes(), 4 // keys.itemsize
    groups = keys.view(blocks, heads, block // lanes, lanes, dim // step, step)
    pairs = values.view(blocks, heads, block // step, step, dim)
    return groups.transpose(3, 4).reshape(keys.shape), pairs.transpose(3, 4).reshape(values.shape)


def plain(ops: Ops, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The reverse of `laid_out`."""
    if ops.NAME != "cpu":
        return keys, values
    blocks, heads, block, dim = keys.shape
    lanes, step = library().squadron_lanes(), 4 // keys.itemsize
    groups = keys.view(blocks, heads, block // lanes, dim // step, lanes, step)
    pairs = values.view(blocks, heads, block // step, dim, step)
    return groups.transpose(3, 4).reshape(keys.shape), pairs.transpose(3, 4).reshape(values.shape)
