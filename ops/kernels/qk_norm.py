"""RMS norm of each query and key head, in place."""

import triton
import triton.language as tl
from torch import Tensor

from ops.checks import qk_norm_sizes


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
):
    """Grid (T, query and key heads): the arithmetic of norm_kernel on one head."""
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    exists = columns < SIZE
    cells = (tl.program_id(0).to(tl.int64) * HEADS + head) * SIZE + columns
    value = tl.load(qkv + cells, mask=exists, other=0.0).to(tl.float32)
    weight = tl.load((query_weight if head < QUERY_HEADS else key_weight) + columns, mask=exists, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps)
    tl.store(qkv + cells, (value * scale * weight.to(tl.float32)).to(qkv.dtype.element_ty), mask=exists)


def qk_norm(qkv: Tensor, query_weight: Tensor, key_weight: Tensor, num_kv_heads: int, eps: float) -> None:
    """In place on qkv [T, (H + 2 * K) * head_dim] dtype: rms_norm of each query and key head;
    weights [head_dim] dtype.
    """
    num_rows, num_heads, head_dim = qk_norm_sizes(qkv, query_weight, key_weight, num_kv_heads)
    if num_rows:
        qk_norm_kernel[(num_rows, num_heads + num_kv_heads)](
            qkv, query_weight, key_weight, eps,
            HEADS=num_heads + 2 * num_kv_heads, QUERY_HEADS=num_heads, SIZE=head_dim,
            BLOCK=triton.next_power_of_2(head_dim), num_warps=1,
        )  # fmt: skip
