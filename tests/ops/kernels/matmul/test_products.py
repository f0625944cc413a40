"""One tile of outputs by rows, over one leaf of the inputs, of weights stored in each way."""

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from torch import Tensor

from ops.interface import Quantization
from ops.kernels.matmul.products import products
from ops.kernels.matmul.stored import operands, store
from ops.reference.matmul.quantization import quantize
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS
OUTS, ROWS, LEAF, NUM_LEAVES = 16, 16, 96, 2  # a leaf is a group and a half


@triton.jit
def tile_kernel(
    x, x_scales, weight, scales, zeros, output, leaf,
    NUM_OUT: tl.constexpr, NUM_LEAVES: tl.constexpr, LEAF: tl.constexpr, KIND: tl.constexpr, PIECE: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    outs, rows = tl.arange(0, OUTS), tl.arange(0, ROWS)
    acc, up_acc = products(
        x, x_scales, weight, scales, zeros, leaf, outs, rows.to(tl.int64),
        NUM_OUT, NUM_LEAVES, LEAF, KIND, PIECE, GATED, OUTS, ROWS, 32, 2,
    )  # fmt: skip
    cells = outs[:, None] * ROWS + rows[None, :]
    tl.store(output + cells, acc)
    if GATED:
        tl.store(output + OUTS * ROWS + cells, up_acc)


def tile(x: Tensor, weight: Tensor, quantization: Quantization | None, leaf: int, *, is_gated: bool) -> Tensor:
    """[1 or 2, OUTS, ROWS] float32."""
    output = torch.full((1 + is_gated, OUTS, ROWS), torch.nan, device=DEVICE)
    given = operands(x, store(weight, quantization, NUM_LEAVES), NUM_LEAVES)
    tile_kernel[(1,)](
        given.x, given.x_scales, given.codes, given.scales, given.zeros, output, leaf,
        NUM_OUT=OUTS, NUM_LEAVES=NUM_LEAVES, LEAF=given.leaf, KIND=given.kind, PIECE=given.piece,
        GATED=is_gated, OUTS=OUTS, ROWS=ROWS,
    )  # fmt: skip
    return output


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_a_tile_is_the_product_with_what_the_weight_stands_for(
    quantization: Quantization | None, is_gated: bool
) -> None:
    weight = torch.randn(OUTS * (1 + is_gated), NUM_LEAVES * LEAF, device=DEVICE)
    x = torch.randn(ROWS, NUM_LEAVES * LEAF, device=DEVICE)
    numbers = quantize(weight, quantization, NUM_LEAVES)
    for leaf in range(NUM_LEAVES):
        part = slice(leaf * LEAF, (leaf + 1) * LEAF)
        want = (numbers[:, part].double() @ x[:, part].double().T).float().view(-1, OUTS, ROWS)
        got = tile(x, weight, quantization, leaf, is_gated=is_gated)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_a_row_does_not_see_the_others(quantization: Quantization | None) -> None:
    weight = torch.randn(OUTS, NUM_LEAVES * LEAF, device=DEVICE)
    x = torch.randn(ROWS, NUM_LEAVES * LEAF, device=DEVICE)
    before = tile(x, weight, quantization, 1, is_gated=False)[0, :, 3]
    others = torch.full_like(x, torch.nan)
    others[3] = x[3]
    assert torch.equal(tile(others, weight, quantization, 1, is_gated=False)[0, :, 3], before)
