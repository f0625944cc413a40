"""Rotary position embedding, and the write of keys and values to their slots, in one pass over the
packed rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.interface import check_shape
from ops.kernels.chain import begin, chained
from ops.kernels.device import check_float8

HEADS_AT_ONCE = 32  # of neighbouring rows
LARGEST_FLOAT8 = tl.constexpr(448.0)


@triton.jit(do_not_specialize=["num_rows"])
def rotary_kernel(
    qkv,  # [T, (HEADS + 2 * KV_HEADS) * 2 * HALF]
    positions,
    cos_sin,  # [max_positions, 2 * HALF] float32
    slot_mapping,
    keys,
    values,
    query,
    num_rows,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,  # of a head
    BLOCK_SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    FLOAT8: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (tiles of the heads of all rows,). Pairs are the two halves of a head (NeoX)."""
    begin(CHAINED)
    ROW_HEADS: tl.constexpr = HEADS + 2 * KV_HEADS
    cells = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    row, head = (cells // ROW_HEADS).to(tl.int64), cells % ROW_HEADS
    exists = row < num_rows
    dims = tl.arange(0, HALF)[None, :]
    source = qkv + cells.to(tl.int64)[:, None] * (2 * HALF) + dims
    first = tl.load(source, mask=exists[:, None], other=0.0)
    second = tl.load(source + HALF, mask=exists[:, None], other=0.0)
    angle = cos_sin + tl.load(positions + row, mask=exists, other=0).to(tl.int64)[:, None] * (2 * HALF) + dims
    slot = tl.load(slot_mapping + row, mask=exists, other=0).to(tl.int64)
    cos = tl.load(angle, mask=exists[:, None], other=0.0)
    sin = tl.load(angle + HALF, mask=exists[:, None], other=0.0)
    turned_first, turned_second = rotate(first, second, cos, sin)

    is_query = (exists & (head < HEADS))[:, None]
    target = query + (row * HEADS + head)[:, None] * (2 * HALF) + dims
    tl.store(target, turned_first, mask=is_query)
    tl.store(target + HALF, turned_second, mask=is_query)

    is_key = (exists & (head >= HEADS) & (head < HEADS + KV_HEADS))[:, None]
    is_value = (exists & (head >= HEADS + KV_HEADS))[:, None]
    block = slot // BLOCK_SIZE * KV_HEADS - HEADS
    places = ((block + head) * BLOCK_SIZE + slot % BLOCK_SIZE)[:, None] * (2 * HALF) + dims
    store_in_cache(keys + places, turned_first, is_key, FLOAT8)
    store_in_cache(keys + places + HALF, turned_second, is_key, FLOAT8)
    places -= KV_HEADS * BLOCK_SIZE * (2 * HALF)
    store_in_cache(values + places, first, is_value, FLOAT8)
    store_in_cache(values + places + HALF, second, is_value, FLOAT8)


@triton.jit
def rotate(first, second, cos, sin):
    """The two halves of heads, turned; cos, sin: float32."""
    first32 = first.to(tl.float32)
    second32 = second.to(tl.float32)
    turned_first = tl.fma(first32, cos, -(second32 * sin)).to(first.dtype)
    return turned_first, tl.fma(second32, cos, first32 * sin).to(first.dtype)


@triton.jit
def store_in_cache(cells, value, mask, FLOAT8: tl.constexpr):
    """Of float8_e4m3fn, numbers larger than it can hold become the largest, not NaN."""
    if FLOAT8:
        value = value.to(tl.float32)
        value = tl.where(value != value, value, tl.minimum(tl.maximum(value, -LARGEST_FLOAT8), LARGEST_FLOAT8))
    tl.store(cells, value.to(cells.dtype.element_ty), mask=mask)


def rotary_and_cache(
    qkv: Tensor, positions: Tensor, cos_sin: Tensor, slot_mapping: Tensor, key_cache: Tensor, value_cache: Tensor
) -> Tensor:
    """qkv [T, (H + 2 * K) * head_dim] dtype; positions, slot_mapping [T] int32; cos_sin
    [max_positions, head_dim] float32; caches [num_blocks, K, block_size, head_dim] dtype or
    float8_e4m3fn -> the rotated queries, [T, H, head_dim] dtype.
    """
    check_shape("qkv", qkv, (None, None))
    num_heads = check_rotary(qkv, qkv.shape[1], positions, cos_sin, slot_mapping, key_cache, value_cache)
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    num_rows, is_float8 = qkv.shape[0], key_cache.dtype == torch.float8_e4m3fn
    query = torch.empty((num_rows, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if num_rows:
        rotary_kernel[(triton.cdiv(num_rows * (num_heads + 2 * num_kv_heads), HEADS_AT_ONCE),)](
            qkv, positions, cos_sin, slot_mapping, key_cache, value_cache, query, num_rows,
            HEADS=num_heads, KV_HEADS=num_kv_heads, HALF=head_dim // 2, BLOCK_SIZE=block_size,
            AT_ONCE=HEADS_AT_ONCE, FLOAT8=is_float8, **chained(qkv.device),
        )  # fmt: skip
    return query


def check_rotary(
    rows: Tensor,
    width: int,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> int:
    """The number of query heads in qkv of that width, which are the rows or are made of them.
    Raises ValueError.
    """
    check_shape("key_cache", key_cache, (None, None, None, None))
    _, num_kv_heads, _, head_dim = key_cache.shape
    is_float8 = key_cache.dtype == torch.float8_e4m3fn
    check_shape("value_cache", value_cache, tuple(key_cache.shape), key_cache.dtype)
    check_shape("qkv", rows, (None, None), None if is_float8 else key_cache.dtype)
    check_shape("positions", positions, (rows.shape[0],), torch.int32)
    check_shape("slot_mapping", slot_mapping, (rows.shape[0],), torch.int32)
    check_shape("cos_sin", cos_sin, (None, head_dim), torch.float32)
    num_heads = width // head_dim - 2 * num_kv_heads
    if width % head_dim or num_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"qkv has {width / head_dim:g} heads of {head_dim}; {num_kv_heads} key-value heads do not fit them"
        )
    if head_dim < 2 or head_dim & (head_dim - 1):
        raise ValueError(f"head_dim={head_dim} is not a power of two")
    if is_float8:
        check_float8(rows.device)
    return num_heads
