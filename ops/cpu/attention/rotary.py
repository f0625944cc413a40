"""Rotary position embedding, and the write of keys and values to their slots."""

import torch
from torch import Tensor

from ops.cpu.checks import cache_sizes, sizes
from ops.cpu.library import dtype_number, library
from ops.cpu.matmul.linear import linear
from ops.interface import Prepared, check_shape


def rotary_and_cache(
    qkv: Tensor, positions: Tensor, cos_sin: Tensor, slot_mapping: Tensor, key_cache: Tensor, value_cache: Tensor
) -> Tensor:
    """qkv [T, (H + 2 * K) * head_dim] dtype; positions, slot_mapping [T] int32; cos_sin
    [max_positions, head_dim] float32; caches [num_blocks, K, block_size, head_dim] dtype -> the
    rotated queries, [T, H, head_dim] dtype.
    """
    num_blocks, num_kv_heads, block_size, head_dim = cache_sizes(key_cache, value_cache)
    num_rows, width = sizes("qkv", qkv, 2)
    check_shape("qkv", qkv, (num_rows, width), key_cache.dtype)
    num_heads = width // head_dim - 2 * num_kv_heads
    if width % head_dim or num_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"qkv has {width / head_dim:g} heads of {head_dim}; {num_kv_heads} key-value heads do not fit them"
        )
    check_shape("positions", positions, (num_rows,), torch.int32)
    check_shape("slot_mapping", slot_mapping, (num_rows,), torch.int32)
    max_positions, _ = sizes("cos_sin", cos_sin, 2)
    check_shape("cos_sin", cos_sin, (max_positions, head_dim), torch.float32)
    queries = torch.empty((num_rows, num_heads, head_dim), dtype=qkv.dtype)
    wrong = library().squadron_rotary_and_cache(
        qkv.data_ptr(),
        positions.data_ptr(),
        cos_sin.data_ptr(),
        slot_mapping.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        queries.data_ptr(),
        num_rows,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        num_blocks,
        max_positions,
        dtype_number(qkv),
        torch.get_num_threads(),
    )
    if wrong >= 0:
        raise ValueError(
            f"row {wrong}: position {positions[wrong]} of {max_positions}, "
            f"slot {slot_mapping[wrong]} of {num_blocks * block_size}"
        )
    return queries


def linear_rotary_and_cache(
    x: Tensor,
    weight: Prepared,
    bias: Tensor | None,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> Tensor:
    """As one op after the other."""
    return rotary_and_cache(linear(x, weight, bias), positions, cos_sin, slot_mapping, key_cache, value_cache)
