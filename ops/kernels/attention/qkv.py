"""The product that makes queries, keys and values, which turns them and writes keys and values to
their slots before it ends: a launch and two passes over qkv less than one kernel after the other.

Arithmetic is that of `linear` and `rotary`: the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.interface import check_shape
from ops.kernels.attention.rotary import check_rotary, rotary_and_cache, rotate, store_in_cache
from ops.kernels.chain import begin, chained
from ops.kernels.matmul.linear import fetch_first, linear, tile_of
from ops.kernels.matmul.products import products, with_bias
from ops.kernels.matmul.stored import Stored, operands
from ops.kernels.matmul.tiles import FEW_ROWS, launch_options

RUN = tl.constexpr(8)  # rows that a thread of tensor cores has one sum of, and the next sum RUN rows below
LEAST_HEAD = 2 * RUN.value


@triton.jit(do_not_specialize=["num_rows"])
def qkv_kernel(
    x,  # [T, LEAF]
    x_scales,
    weight,  # of NUM_OUT rows
    scales,
    zeros,
    bias,
    positions,
    cos_sin,  # [max_positions, HEAD_DIM] float32
    slot_mapping,
    keys,
    values,
    query,  # [T, HEADS, HEAD_DIM]
    num_rows,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FLOAT8: tl.constexpr,
    LEAF: tl.constexpr,
    KIND: tl.constexpr,
    PIECE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (tiles of outputs * tiles of rows,). A tile has outputs in the order of `_output`, so
    that what turns together is a thread's.
    """
    NUM_OUT: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    HALF: tl.constexpr = HEAD_DIM // 2
    first_place, first_row = tile_of(tl.program_id(0), num_rows, NUM_OUT, OUTS, ROWS)
    rows = first_row + tl.arange(0, ROWS)
    outs = _output(tl.minimum(first_place + tl.arange(0, OUTS), NUM_OUT - 1), HEAD_DIM)
    existing_rows = tl.minimum(rows, num_rows - 1).to(tl.int64)
    if CHAINED and KIND == "plain" and ROWS <= FEW_ROWS:
        fetch_first(weight + outs.to(tl.int64) * LEAF, LEAF)
    begin(CHAINED)
    acc, _ = products(
        x, x_scales, weight, scales, zeros, 0, outs, existing_rows,
        NUM_OUT, 1, LEAF, KIND, PIECE, False, OUTS, ROWS, INPUTS, STAGES,
    )  # fmt: skip
    if HAS_BIAS:
        acc = with_bias(acc, tl.load(bias + outs), OUTS, ROWS)
    runs = tl.reshape(acc.to(query.dtype.element_ty), [OUTS // (2 * RUN), 2, RUN, ROWS])
    first, second = tl.split(tl.permute(runs, [0, 2, 3, 1]))
    first, second = tl.reshape(first, [OUTS // 2, ROWS]), tl.reshape(second, [OUTS // 2, ROWS])

    pairs = tl.arange(0, OUTS // 2)
    places = first_place + pairs // RUN * (2 * RUN) + pairs % RUN
    out = _output(tl.where(places < NUM_OUT, places, 0), HEAD_DIM)  # second's are HALF further
    head, dim = (out // HEAD_DIM)[:, None], (out % HEAD_DIM)[:, None]
    exists = (places < NUM_OUT)[:, None] & (rows < num_rows)[None, :]
    angle = cos_sin + tl.load(positions + existing_rows).to(tl.int64)[None, :] * HEAD_DIM + dim
    turned_first, turned_second = rotate(first, second, tl.load(angle), tl.load(angle + HALF))
    target = query + (existing_rows[None, :] * HEADS + head) * HEAD_DIM + dim
    tl.store(target, turned_first, mask=exists & (head < HEADS))
    tl.store(target + HALF, turned_second, mask=exists & (head < HEADS))

    slot = tl.load(slot_mapping + existing_rows).to(tl.int64)[None, :]
    block = slot // BLOCK_SIZE * KV_HEADS - HEADS
    cells = ((block + head) * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + dim
    is_key = exists & (head >= HEADS) & (head < HEADS + KV_HEADS)
    store_in_cache(keys + cells, turned_first, is_key, FLOAT8)
    store_in_cache(keys + cells + HALF, turned_second, is_key, FLOAT8)
    cells -= KV_HEADS * BLOCK_SIZE * HEAD_DIM
    is_value = exists & (head >= HEADS + KV_HEADS)
    store_in_cache(values + cells, first, is_value, FLOAT8)
    store_in_cache(values + cells + HALF, second, is_value, FLOAT8)


@triton.jit
def _output(places, HEAD_DIM: tl.constexpr):
    """Which outputs are at those places of the product: of a head by turns RUN of its first half
    and the RUN of the second that turn with them.
    """
    within = places % HEAD_DIM
    run, side = within // (2 * RUN), within // RUN % 2
    return places - within + side * (HEAD_DIM // 2) + run * RUN + within % RUN


def linear_rotary_and_cache(
    x: Tensor,
    weight: Stored,
    bias: Tensor | None,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> Tensor:
    """x [T, in] dtype -> the rotated queries, [T, H, head_dim] dtype: linear, then
    rotary_and_cache, as one kernel for few rows. The sums of many leave no registers for more.
    """
    check_shape("key_cache", key_cache, (None, None, None, None))
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    if x.shape[0] > FEW_ROWS.value or head_dim < LEAST_HEAD:
        return rotary_and_cache(linear(x, weight, bias), positions, cos_sin, slot_mapping, key_cache, value_cache)
    check_shape("x", x, (None, weight.shape[1]), weight.dtype)
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],), weight.dtype)
    num_heads = check_rotary(x, weight.shape[0], positions, cos_sin, slot_mapping, key_cache, value_cache)
    query = x.new_empty((x.shape[0], num_heads, head_dim))
    if x.shape[0]:
        given = operands(x, weight)
        num_tiles, options = launch_options(given, weight.dtype, weight.shape[0], 1, False)
        qkv_kernel[(num_tiles,)](
            given.x, given.x_scales, given.codes, given.scales, given.zeros, bias,
            positions, cos_sin, slot_mapping, key_cache, value_cache, query, x.shape[0],
            HEADS=num_heads, KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
            FLOAT8=key_cache.dtype == torch.float8_e4m3fn,
            LEAF=given.leaf, KIND=given.kind, PIECE=given.piece, HAS_BIAS=bias is not None,
            **options, **chained(x.device),
        )  # fmt: skip
    return query
