"""The gated activation on its own."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.interface import check_shape


@triton.jit
def silu_kernel(x, output, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (T, tiles of SIZE): x [T, 2 * SIZE] -> [T, SIZE]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = columns < SIZE
    gate = tl.load(x + row * (2 * SIZE) + columns, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * SIZE) + SIZE + columns, mask=exists, other=0.0).to(tl.float32)
    tl.store(
        output + row * SIZE + columns, (gate / (1.0 + tl.exp(-gate)) * up).to(output.dtype.element_ty), mask=exists
    )


def silu_and_mul(x: Tensor) -> Tensor:
    """x [T, 2 * I] dtype -> silu(x[:, :I]) * x[:, I:], [T, I] dtype."""
    return silu_rows(x, x.dtype)


def silu_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same, cast to another dtype."""
    check_shape("x", x, (None, None))
    num_rows, width = x.shape
    output = torch.empty((num_rows, width // 2), dtype=dtype, device=x.device)
    if output.numel():
        block = min(1024, triton.next_power_of_2(width // 2))
        silu_kernel[(num_rows, triton.cdiv(width // 2, block))](x, output, SIZE=width // 2, BLOCK=block)
    return output
