"""Rotary position embedding, and the write of keys and values into the paged cache."""

import torch
from torch import Tensor

from ops.interface import Prepared, check_shape
from ops.reference.matmul.linear import linear


def rotary_and_cache(
    qkv: Tensor, positions: Tensor, cos_sin: Tensor, slot_mapping: Tensor, key_cache: Tensor, value_cache: Tensor
) -> Tensor:
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    check_shape("qkv", qkv, (None, None), key_cache.dtype)
    check_shape("positions", positions, (qkv.shape[0],))
    check_shape("slot_mapping", slot_mapping, (qkv.shape[0],))
    check_shape("cos_sin", cos_sin, (None, head_dim), torch.float32)
    check_shape("value_cache", value_cache, tuple(key_cache.shape), qkv.dtype)
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    num_heads = heads.shape[1] - 2 * num_kv_heads
    if num_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"qkv has {heads.shape[1]} heads of {head_dim}; {num_kv_heads} key-value heads do not fit them"
        )

    rotated = _rotate(heads[:, :-num_kv_heads], cos_sin[positions.long()]).to(qkv.dtype)
    block_ids = slot_mapping.long() // block_size
    offsets = slot_mapping.long() % block_size
    key_cache[block_ids, :, offsets] = rotated[:, num_heads:]
    value_cache[block_ids, :, offsets] = heads[:, -num_kv_heads:]
    return rotated[:, :num_heads].contiguous()


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


def _rotate(heads: Tensor, cos_sin: Tensor) -> Tensor:
    """NeoX halves. heads [T, H, head_dim]; cos_sin [T, head_dim] float32; returns float32."""
    first, second = heads.float().chunk(2, dim=2)
    cos, sin = cos_sin[:, None].chunk(2, dim=2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2)
