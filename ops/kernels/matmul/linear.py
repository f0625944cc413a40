"""Linear layers whose elements are each summed in one order, whatever the number of rows.

`products` computes a tile. A leaf of a tree linear is one program's whole sum; a second kernel adds
leaves as a balanced tree.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import check_gate_up, check_leaves, check_weight
from ops.interface import Quantization, Weight, check_shape
from ops.kernels.chain import begin, chained, fetch
from ops.kernels.matmul.products import of_boxes, products, with_bias
from ops.kernels.matmul.stored import Stored, decoded, operands, rows_of, store
from ops.kernels.matmul.tiles import FEW_ROWS, described, launch_options
from ops.kernels.norm import MOST_LEAVES

LINE = tl.constexpr(64)  # weights of 16 bits in a line of the cache
FETCHED_LINES = tl.constexpr(4)  # as many as fit into the cache of all programs that run at once


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    x,  # [T, NUM_LEAVES * LEAF]
    x_boxes,  # the same as boxes of [ROWS, INPUTS], or None
    x_scales,
    weight,  # of NUM_OUT rows, or twice as many if GATED
    weight_boxes,  # the same as boxes of [OUTS, INPUTS], or None
    scales,
    zeros,
    bias,
    output,  # [NUM_LEAVES, T, NUM_OUT]
    num_rows,
    NUM_OUT: tl.constexpr,
    NUM_LEAVES: tl.constexpr,
    LEAF: tl.constexpr,
    KIND: tl.constexpr,
    PIECE: tl.constexpr,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (tiles of outputs * tiles of rows, NUM_LEAVES): OUTS outputs of ROWS rows, over one leaf
    of the inputs.
    """
    leaf = tl.program_id(1)
    first_out, first_row = tile_of(tl.program_id(0), num_rows, NUM_OUT, OUTS, ROWS)
    outs, rows = first_out + tl.arange(0, OUTS), first_row + tl.arange(0, ROWS)
    # Outputs and rows that do not exist repeat the last one, and are not stored.
    existing_outs = tl.minimum(outs, NUM_OUT - 1)
    existing_rows = tl.minimum(rows, num_rows - 1).to(tl.int64)
    if CHAINED and KIND == "plain" and ROWS <= FEW_ROWS:
        weight_rows = weight + existing_outs.to(tl.int64) * (NUM_LEAVES * LEAF) + leaf * LEAF
        fetch_first(weight_rows, LEAF)
        if GATED:
            fetch_first(weight_rows + NUM_OUT * NUM_LEAVES * LEAF, LEAF)
    begin(CHAINED)
    if weight_boxes is None:
        acc, up_acc = products(
            x, x_scales, weight, scales, zeros, leaf, existing_outs, existing_rows,
            NUM_OUT, NUM_LEAVES, LEAF, KIND, PIECE, GATED, OUTS, ROWS, INPUTS, STAGES,
        )  # fmt: skip
    else:
        acc, up_acc = of_boxes(
            x_boxes, weight_boxes, first_row, first_out, leaf * LEAF, NUM_OUT, LEAF, GATED, OUTS, ROWS, INPUTS, STAGES
        )
    if HAS_BIAS:
        acc = with_bias(acc, tl.load(bias + existing_outs), OUTS, ROWS)
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * up_acc
    cells = (leaf.to(tl.int64) * num_rows + rows)[None, :] * NUM_OUT + outs[:, None]
    tl.store(
        output + cells, acc.to(output.dtype.element_ty), mask=(outs < NUM_OUT)[:, None] & (rows < num_rows)[None, :]
    )


@triton.jit
def tile_of(tile, num_rows, NUM_OUT: tl.constexpr, OUTS: tl.constexpr, ROWS: tl.constexpr):
    """The first output and the first row of a program.

    Eight tiles of rows at a time go through all weights, so that what concurrent programs read
    stays in the cache.
    """
    OUT_TILES: tl.constexpr = (NUM_OUT + OUTS - 1) // OUTS
    row_tiles = tl.cdiv(num_rows, ROWS)
    band = tile // (8 * OUT_TILES)
    band_rows = tl.minimum(row_tiles - 8 * band, 8)
    within = tile % (8 * OUT_TILES)
    return within // band_rows * OUTS, (8 * band + within % band_rows) * ROWS


@triton.jit
def fetch_first(weight_rows, LEAF: tl.constexpr):
    """Have the first lines of each of these rows [OUTS] brought near. Weights depend on no kernel:
    this may come before a chained one begins.
    """
    lines = tl.minimum(tl.arange(0, FETCHED_LINES) * LINE, LEAF - 1)[None, :]
    fetch(weight_rows[:, None] + lines)


@triton.jit(do_not_specialize=["size"])
def add_leaves_kernel(leaves, output, size, NUM_LEAVES: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    """leaves [NUM_LEAVES, size] float32 -> [size]: neighbours first. A sum of two has only one
    order.
    """
    begin(CHAINED)
    cells = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    leaf_ids = tl.arange(0, NUM_LEAVES)
    sums = tl.load(
        leaves + leaf_ids[:, None] * size.to(tl.int64) + cells[None, :], mask=(cells < size)[None, :], other=0.0
    )
    for level in tl.static_range(8):
        if (NUM_LEAVES >> level) > 1:
            sums = tl.sum(tl.reshape(sums, [NUM_LEAVES >> (level + 1), 2, BLOCK]), 1)
    tl.store(output + cells, tl.reshape(sums, [BLOCK]), mask=cells < size)


@dataclass(frozen=True, slots=True)
class TreeWeight:
    """weight [out, in] of a row-parallel linear, its inputs cut into num_leaves."""

    weight: Stored
    num_leaves: int


def prepare_linear(weight: Weight, quantization: Quantization | None = None) -> Stored:
    """weight [out, in] dtype."""
    check_weight(weight)
    return store(weight, quantization)


def prepare_embedding(weight: Tensor, quantization: Quantization | None = None) -> Stored:
    """weight [rows, D] dtype."""
    return prepare_linear(weight, quantization)


def prepare_gate_up(weight: Weight, quantization: Quantization | None = None) -> Stored:
    """weight [2 * I, D] dtype, gate's rows first."""
    check_gate_up(weight)
    return store(weight, quantization)


def prepare_tree_linear(weight: Weight, num_leaves: int, quantization: Quantization | None = None) -> TreeWeight:
    """weight [out, in] dtype."""
    check_leaves(weight, num_leaves)
    return TreeWeight(store(weight, quantization, num_leaves), num_leaves)


def linear(x: Tensor, weight: Stored, bias: Tensor | None) -> Tensor:
    """x [T, in] dtype -> [T, out] dtype; bias [out] dtype is added in float32 before the one
    cast.
    """
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],), weight.dtype)
    return multiply(x, weight, x.dtype, bias=bias)[0]


def linear_float32(x: Tensor, weight: Stored) -> Tensor:
    """x [T, in] dtype -> [T, out] float32."""
    return multiply(x, weight, torch.float32)[0]


def embedding(ids: Tensor, weight: Stored, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows ids [T] int32 of weight [rows, D] -> [T, D] dtype."""
    check_shape("ids", ids, (None,), torch.int32)
    rows = rows_of(weight, ids)
    return rows if rows.dtype == dtype else rows.to(dtype)


def gate_up_silu(x: Tensor, weight: Stored) -> Tensor:
    """silu(x @ gate.T) * (x @ up.T); x [T, D] dtype -> [T, I] dtype."""
    return multiply(x, weight, x.dtype, is_gated=True)[0]


def linear_tree(x: Tensor, weight: TreeWeight) -> Tensor:
    """x [T, in] dtype -> [T, out] float32: the leaves' products, added pairwise as a balanced
    binary tree.
    """
    return add_leaves(multiply(x, weight.weight, torch.float32, num_leaves=weight.num_leaves))


def linear_leaves(x: Tensor, weight: TreeWeight) -> Tensor:
    """[leaves, T, out] float32, whose sum is linear_tree's; [T, out] if there are many."""
    leaves = multiply(x, weight.weight, torch.float32, num_leaves=weight.num_leaves)
    return leaves if weight.num_leaves <= MOST_LEAVES else add_leaves(leaves)


def add_leaves(leaves: Tensor) -> Tensor:
    """leaves [num_leaves, T, out] float32 -> [T, out]."""
    num_leaves = leaves.shape[0]
    if num_leaves == 1:
        return leaves[0]
    output = torch.empty_like(leaves[0])
    block = 1024 // num_leaves
    if output.numel():
        add_leaves_kernel[(triton.cdiv(output.numel(), block),)](
            leaves, output, output.numel(), NUM_LEAVES=num_leaves, BLOCK=block, **chained(leaves.device)
        )
    return output


def multiply(
    x: Tensor,
    weight: Stored,
    dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    num_leaves: int = 1,
    is_gated: bool = False,
) -> Tensor:
    """[num_leaves, T, out] dtype."""
    check_shape("x", x, (None, weight.shape[1]), weight.dtype)
    num_out = weight.shape[0] // 2 if is_gated else weight.shape[0]
    output = x.new_empty((num_leaves, x.shape[0], num_out), dtype=dtype)
    if output.numel():
        given = decoded(operands(x, weight, num_leaves), weight, num_leaves)
        num_tiles, options = launch_options(given, weight.dtype, num_out, num_leaves, is_gated)
        x_boxes, weight_boxes = described(given, options, num_leaves)
        linear_kernel[(num_tiles, num_leaves)](
            given.x, x_boxes, given.x_scales, given.codes, weight_boxes, given.scales, given.zeros, bias,
            output, x.shape[0],
            NUM_OUT=num_out, NUM_LEAVES=num_leaves, LEAF=given.leaf, KIND=given.kind, PIECE=given.piece,
            GATED=is_gated, HAS_BIAS=bias is not None, **options, **chained(x.device),
        )  # fmt: skip
    return output
