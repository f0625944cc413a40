"""RMS norm, of rows and of heads, and the additions to the residual stream."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import qk_norm_sizes
from ops.interface import check_shape
from ops.kernels.chain import begin, chained


@triton.jit
def norm_kernel(
    update,  # [T, SIZE] float32, if ADDS
    residual,  # [T, SIZE], written if ADDS
    weight,
    output,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (T,): a row a program. The norm is that of the residual as cast."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64) * SIZE
    columns = tl.arange(0, BLOCK)
    exists = columns < SIZE
    value = tl.load(residual + row + columns, mask=exists, other=0.0)
    if ADDS:
        added = value.to(tl.float32) + tl.load(update + row + columns, mask=exists, other=0.0)
        value = added.to(value.dtype)
        tl.store(residual + row + columns, value, mask=exists)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps)
    scaled = value * scale * tl.load(weight + columns, mask=exists, other=0.0).to(tl.float32)
    tl.store(output + row + columns, scaled.to(output.dtype.element_ty), mask=exists)


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
def add_kernel(update, residual, size, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    begin(CHAINED)
    cells = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = cells < size
    value = tl.load(residual + cells, mask=exists, other=0.0)
    added = value.to(tl.float32) + tl.load(update + cells, mask=exists, other=0.0)
    tl.store(residual + cells, added.to(value.dtype), mask=exists)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, D] dtype, weight [D] dtype -> [T, D] dtype."""
    check_shape("x", x, (None, None))
    check_shape("weight", weight, (x.shape[1],), x.dtype)
    return _norm(None, x, weight, eps)


def add_rms_norm(update: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, D] dtype += update [T, D] float32, in place and cast once; returns its rms_norm,
    [T, D] dtype.
    """
    check_shape("residual", residual, (None, None))
    check_shape("update", update, tuple(residual.shape), torch.float32)
    check_shape("weight", weight, (residual.shape[1],), residual.dtype)
    return _norm(update, residual, weight, eps)


def add(update: Tensor, residual: Tensor) -> None:
    """residual [T, D] dtype += update [T, D] float32, in place and cast once."""
    check_shape("residual", residual, (None, None))
    check_shape("update", update, tuple(residual.shape), torch.float32)
    if residual.numel():
        add_kernel[(triton.cdiv(residual.numel(), 1024),)](
            update, residual, residual.numel(), BLOCK=1024, **chained(residual.device)
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
    if num_rows:
        block = triton.next_power_of_2(size)
        norm_kernel[(num_rows,)](
            update, residual, weight, output, eps,
            SIZE=size, BLOCK=block, ADDS=update is not None, num_warps=min(16, max(1, block // 512)),
            **chained(residual.device),
        )  # fmt: skip
    return output
