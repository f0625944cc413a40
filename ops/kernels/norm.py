"""RMS norm, of rows and of heads, and the additions to the residual stream."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import qk_norm_sizes
from ops.interface import check_shape
from ops.kernels.chain import begin, chained

MOST_LEAVES = 4  # of an update, that are added here: more would not fit into registers
FEW_ROWS = 1024  # each has a program; of more rows a program has several, which is less to start
ROWS_AT_ONCE = 4


@triton.jit(do_not_specialize=["num_rows"])
def norm_kernel(
    update,  # [LEAVES, T, SIZE] float32, if LEAVES is not 0
    residual,  # [T, SIZE], written if there is an update
    weight,
    output,
    eps,
    num_rows,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    LEAVES: tl.constexpr,
    ROWS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (tiles of rows,): one row after the other. The norm is that of the residual as cast."""
    columns = tl.arange(0, BLOCK)
    exists = columns < SIZE
    factor = tl.load(weight + columns, mask=exists, other=0.0).to(tl.float32)
    begin(CHAINED)
    first = tl.program_id(0) * ROWS
    for index in range(first, tl.minimum(first + ROWS, num_rows)):
        row = index * tl.full([], SIZE, tl.int64)
        value = tl.load(residual + row + columns, mask=exists, other=0.0)
        if LEAVES > 0:
            leaf_size = num_rows * tl.full([], SIZE, tl.int64)
            added = value.to(tl.float32) + _sum(update + row + columns, exists, leaf_size, LEAVES)
            value = added.to(value.dtype)
            tl.store(residual + row + columns, value, mask=exists)
        value = value.to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps)
        tl.store(output + row + columns, (value * scale * factor).to(output.dtype.element_ty), mask=exists)


@triton.jit
def _sum(cells, exists, leaf_size, LEAVES: tl.constexpr):
    """Of 1, 2 or 4 leaves: neighbours first."""
    total = tl.load(cells, mask=exists, other=0.0)
    if LEAVES >= 2:
        total += tl.load(cells + leaf_size, mask=exists, other=0.0)
    if LEAVES == 4:
        third = tl.load(cells + 2 * leaf_size, mask=exists, other=0.0)
        total += third + tl.load(cells + 3 * leaf_size, mask=exists, other=0.0)
    return total


@triton.jit
def qk_norm_kernel(
    qkv,  # [T, HEADS, SIZE]
    query_weight,
    key_weight,
    eps,
    HEADS: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (T, query and key heads): the arithmetic of norm_kernel on one head."""
    begin(CHAINED)
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    exists = columns < SIZE
    cells = (tl.program_id(0).to(tl.int64) * HEADS + head) * SIZE + columns
    value = tl.load(qkv + cells, mask=exists, other=0.0).to(tl.float32)
    weight = tl.load((query_weight if head < QUERY_HEADS else key_weight) + columns, mask=exists, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps)
    tl.store(qkv + cells, (value * scale * weight.to(tl.float32)).to(qkv.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["size"])
def add_kernel(update, residual, size, LEAVES: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    begin(CHAINED)
    cells = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = cells < size
    value = tl.load(residual + cells, mask=exists, other=0.0)
    added = value.to(tl.float32) + _sum(update + cells, exists, size.to(tl.int64), LEAVES)
    tl.store(residual + cells, added.to(value.dtype), mask=exists)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, D] dtype, weight [D] dtype -> [T, D] dtype."""
    check_shape("x", x, (None, None))
    check_shape("weight", weight, (x.shape[1],), x.dtype)
    return _norm(None, x, weight, eps)


def add_rms_norm(update: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, D] dtype += update [T, D] or [leaves, T, D] float32, in place and cast once;
    returns its rms_norm, [T, D] dtype. Leaves, 1, 2 or 4, are added as a tree first.
    """
    check_shape("residual", residual, (None, None))
    check_shape("weight", weight, (residual.shape[1],), residual.dtype)
    return _norm(update, residual, weight, eps)


def add(update: Tensor, residual: Tensor) -> None:
    """residual [T, D] dtype += update [T, D] or [leaves, T, D] float32, as add_rms_norm does."""
    check_shape("residual", residual, (None, None))
    num_leaves = _num_leaves(update, residual)
    if residual.numel():
        add_kernel[(triton.cdiv(residual.numel(), 1024),)](
            update, residual, residual.numel(), LEAVES=num_leaves, BLOCK=1024, **chained(residual.device)
        )


def qk_norm(qkv: Tensor, query_weight: Tensor, key_weight: Tensor, num_kv_heads: int, eps: float) -> None:
    """In place on qkv [T, (H + 2 * K) * head_dim] dtype: rms_norm of each query and key head;
    weights [head_dim] dtype.
    """
    num_rows, num_heads, head_dim = qk_norm_sizes(qkv, query_weight, key_weight, num_kv_heads)
    if num_rows:
        qk_norm_kernel[(num_rows, num_heads + num_kv_heads)](
            qkv, query_weight, key_weight, eps,
            HEADS=num_heads + 2 * num_kv_heads, QUERY_HEADS=num_heads, SIZE=head_dim,
            BLOCK=triton.next_power_of_2(head_dim), num_warps=1, **chained(qkv.device),
        )  # fmt: skip


def _norm(update: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    output = torch.empty_like(residual)
    num_rows, size = residual.shape
    num_leaves = 0 if update is None else _num_leaves(update, residual)
    if num_rows:
        block = triton.next_power_of_2(size)
        rows = 1 if num_rows <= FEW_ROWS else ROWS_AT_ONCE
        norm_kernel[(triton.cdiv(num_rows, rows),)](
            update, residual, weight, output, eps, num_rows,
            SIZE=size, BLOCK=block, LEAVES=num_leaves, ROWS=rows, num_warps=min(16, max(1, block // 256)),
            **chained(residual.device),
        )  # fmt: skip
    return output


def _num_leaves(update: Tensor, residual: Tensor) -> int:
    num_leaves = update.shape[0] if update.ndim == 3 else 1
    check_shape("update", update, (*update.shape[:-2], *residual.shape), torch.float32)
    if num_leaves not in (1, 2, MOST_LEAVES):
        raise ValueError(f"update has {num_leaves} leaves, not 1, 2 or {MOST_LEAVES}")
    return num_leaves
