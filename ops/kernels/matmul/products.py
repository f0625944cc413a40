"""The inner loops of linears and experts: one tile of outputs by rows, of weights that are stored
in any way.

The weight's rows are the rows of the tensor cores' product and x's its columns, so that one row of
x and thousands are multiplied by the same instruction, and only the product's width differs: an
element takes its inputs in order. Codes become numbers of the model's dtype in registers.
"""

import triton
import triton.language as tl

from ops.kernels.matmul.codes import of_codes, of_rounded


@triton.jit
def products(
    x,  # rows of NUM_LEAVES * LEAF inputs
    x_scales,  # a row's scales, one a leaf; of fp8 only
    weight,  # [ROWS_OF_WEIGHT, NUM_LEAVES * LEAF]; of codes: [leaves' pieces, ROWS_OF_WEIGHT, words]
    scales,  # fp8: [NUM_LEAVES, ROWS_OF_WEIGHT] float32; of codes: [leaves' pieces, ROWS_OF_WEIGHT]
    zeros,  # of codes: [leaves' pieces, ROWS_OF_WEIGHT], or None
    leaf,
    outs,  # [OUTS]
    rows,  # [ROWS] int64, of x
    NUM_OUT: tl.constexpr,
    NUM_LEAVES: tl.constexpr,
    LEAF: tl.constexpr,
    KIND: tl.constexpr,
    PIECE: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """[OUTS, ROWS] float32 over one leaf of the inputs; of the weight's second half too, if
    GATED.
    """
    WIDTH: tl.constexpr = NUM_LEAVES * LEAF
    x_rows = x + rows[:, None] * WIDTH + leaf * LEAF
    if KIND == "codes4" or KIND == "codes8" or KIND == "offset8" or KIND == "float8":
        acc, up_acc = of_codes(
            x_rows, weight, scales, zeros, leaf, outs, NUM_OUT, LEAF, KIND, PIECE, GATED, OUTS, ROWS, STAGES
        )
    elif KIND == "w8a8":
        cells = weight + outs.to(tl.int64)[:, None] * WIDTH + leaf * LEAF
        by_row = tl.load(x_scales + rows * NUM_LEAVES + leaf)[None, :]
        acc, up_acc = of_rounded(
            x_rows, cells, NUM_OUT * WIDTH, scales + outs, NUM_OUT, by_row, LEAF, GATED, OUTS, ROWS, STAGES
        )
    else:
        cells = weight + outs.to(tl.int64)[:, None] * WIDTH + leaf * LEAF
        acc, up_acc = _of_floats(x_rows, cells, NUM_OUT * WIDTH, LEAF, KIND, GATED, OUTS, ROWS, INPUTS, STAGES)
    if KIND == "fp8":
        by_row = tl.load(x_scales + rows * NUM_LEAVES + leaf)[None, :]
        by_out = scales + leaf * (NUM_OUT * (2 if GATED else 1)) + outs
        acc *= tl.load(by_out)[:, None] * by_row
        if GATED:
            up_acc *= tl.load(by_out + NUM_OUT)[:, None] * by_row
    return acc, up_acc


@triton.jit
def with_bias(sums, bias, OUTS: tl.constexpr, ROWS: tl.constexpr):
    """sums [OUTS, ROWS] float32 + bias [OUTS]. Not written as an addition: where sums are of a
    single product, Triton would begin it with the bias, and so add in another order.
    """
    ones = tl.full([OUTS, ROWS], 1.0, tl.float32)
    return tl.fma(sums, ones, tl.broadcast_to(bias.to(tl.float32)[:, None], [OUTS, ROWS]))


@triton.jit
def of_boxes(
    x,
    weight,
    first_row,
    first_out,
    first_input,
    NUM_OUT: tl.constexpr,
    LEAF: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """As `products` with a plain weight, to the bit, of tiles that the device copies as a whole
    (tensor descriptors). What lies outside of x or weight is zero.
    """
    acc = tl.zeros([OUTS, ROWS], tl.float32)
    up_acc = tl.zeros([OUTS, ROWS], tl.float32)
    for start in tl.range(0, LEAF, INPUTS, num_stages=STAGES):
        part = tl.trans(x.load([first_row, first_input + start]))
        acc = tl.dot(weight.load([first_out, first_input + start]), part, acc)
        if GATED:
            up_acc = tl.dot(weight.load([first_out + NUM_OUT, first_input + start]), part, up_acc)
    return acc, up_acc


@triton.jit
def _of_floats(
    x_rows,
    weight_rows,
    up,
    LEAF: tl.constexpr,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Tensor cores keep few bits of a sum of float8 products: INPUTS of them at a time, which are
    # then added in float32.
    IMPRECISE: tl.constexpr = INPUTS if KIND == "fp8" else 0
    inputs = tl.arange(0, INPUTS)[None, :]
    acc = tl.zeros([OUTS, ROWS], tl.float32)
    up_acc = tl.zeros([OUTS, ROWS], tl.float32)
    for start in tl.range(0, LEAF, INPUTS, num_stages=STAGES):
        if LEAF % INPUTS == 0:
            part = tl.load(x_rows + start + inputs)
            weights = tl.load(weight_rows + start + inputs)
        else:
            exists = start + inputs < LEAF
            part = tl.load(x_rows + start + inputs, mask=exists, other=0.0)
            weights = tl.load(weight_rows + start + inputs, mask=exists, other=0.0)
        part = tl.trans(part)
        acc = tl.dot(weights, part, acc, input_precision="ieee", max_num_imprecise_acc=IMPRECISE)
        if GATED:
            if LEAF % INPUTS == 0:
                weights = tl.load(weight_rows + up + start + inputs)
            else:
                weights = tl.load(weight_rows + up + start + inputs, mask=exists, other=0.0)
            up_acc = tl.dot(weights, part, up_acc, input_precision="ieee", max_num_imprecise_acc=IMPRECISE)
    return acc, up_acc
