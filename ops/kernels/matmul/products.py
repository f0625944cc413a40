"""The inner loops of linears and experts: one tile of outputs by rows, of weights that are stored
in any way.

The weight's rows are the rows of the tensor cores' product and x's its columns, so that one row of
x and thousands are multiplied by the same instruction, and only the product's width differs: an
element takes its inputs in order. Codes of integers become the model's dtype in registers, where
they are exact; a group's sum is scaled in float32.
"""

import triton
import triton.language as tl

from ops.kernels.matmul.codes import of_codes, of_rounded

GROUP = tl.constexpr(64)  # inputs that share a scale: ops.reference.matmul.quantization's


@triton.jit
def products(
    x,  # rows of NUM_LEAVES * LEAF inputs
    x_scales,  # a row's scales, one a leaf; of fp8 only
    weight,  # [ROWS_OF_WEIGHT, NUM_LEAVES * LEAF]; of integers: [leaves' groups, ROWS_OF_WEIGHT, bytes]
    scales,  # fp8: [NUM_LEAVES, ROWS_OF_WEIGHT] float32; of integers: [leaves' groups, ROWS_OF_WEIGHT] bfloat16
    zeros,  # of published codes: [leaves' pieces, ROWS_OF_WEIGHT], or None
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
    if KIND == "int8" or KIND == "int4":
        acc, up_acc = _of_integers(
            x_rows, weight, scales, leaf, outs, NUM_OUT, LEAF, KIND == "int4", GATED, OUTS, ROWS, STAGES
        )
    elif KIND == "codes4" or KIND == "codes8" or KIND == "float8":
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


@triton.jit
def _of_integers(
    x_rows,
    codes,
    scales,
    leaf,
    outs,
    NUM_OUT: tl.constexpr,
    LEAF: tl.constexpr,
    IS_INT4: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    NUM_ROWS: tl.constexpr = NUM_OUT * (2 if GATED else 1)
    GROUPS: tl.constexpr = (LEAF + GROUP - 1) // GROUP
    BYTES: tl.constexpr = GROUP // 2 if IS_INT4 else GROUP
    inputs = tl.arange(0, BYTES)[None, :]
    group_rows = (outs + leaf * (GROUPS * NUM_ROWS)).to(tl.int64)
    code_rows = codes + group_rows[:, None] * BYTES + inputs
    scale = tl.load(scales + group_rows)
    up_scale = tl.load(scales + group_rows + NUM_OUT) if GATED else scale
    acc = tl.zeros([OUTS, ROWS], tl.float32)
    up_acc = tl.zeros([OUTS, ROWS], tl.float32)
    for group in tl.range(0, GROUPS, num_stages=STAGES):
        # A scale is read one iteration before it is used: the compiler does not hoist such small
        # reads.
        following = tl.minimum(group + 1, GROUPS - 1) * NUM_ROWS
        next_scale = tl.load(scales + group_rows + following)
        low, high = _group_of_x(x_rows + group * GROUP, LEAF - group * GROUP, GROUPS * GROUP == LEAF, IS_INT4)
        product = _group_product(tl.load(code_rows), low, high, IS_INT4)
        acc = tl.fma(product, _spread(scale, IS_INT4, OUTS, ROWS), acc)
        if GATED:
            next_up_scale = tl.load(scales + group_rows + NUM_OUT + following)
            product = _group_product(tl.load(code_rows + NUM_OUT * BYTES), low, high, IS_INT4)
            up_acc = tl.fma(product, _spread(up_scale, IS_INT4, OUTS, ROWS), up_acc)
            up_scale = next_up_scale
        scale = next_scale
        code_rows += NUM_ROWS * BYTES
    return acc, up_acc


@triton.jit
def _group_of_x(x_rows, num_left, IS_WHOLE: tl.constexpr, IS_INT4: tl.constexpr):
    """A group's inputs [inputs, ROWS]; of int4 in two halves."""
    BYTES: tl.constexpr = GROUP // 2 if IS_INT4 else GROUP
    inputs = tl.arange(0, BYTES)[None, :]
    if IS_WHOLE:
        low = tl.load(x_rows + inputs)
        high = tl.load(x_rows + BYTES + inputs) if IS_INT4 else low
    else:
        low = tl.load(x_rows + inputs, mask=inputs < num_left, other=0.0)
        high = tl.load(x_rows + BYTES + inputs, mask=inputs + BYTES < num_left, other=0.0) if IS_INT4 else low
    return tl.trans(low), tl.trans(high)


@triton.jit
def _group_product(codes, low, high, IS_INT4: tl.constexpr):
    """[OUTS, ROWS] float32; of int4 sixteen times as much: a code stays in the upper half of its
    byte, which keeps its sign.
    """
    if IS_INT4:
        product = tl.dot((codes << 4).to(low.dtype), low, input_precision="ieee")
        product = tl.dot((codes & -16).to(low.dtype), high, product, input_precision="ieee")
    else:
        product = tl.dot(codes.to(low.dtype), low, input_precision="ieee")
    return product


@triton.jit
def _spread(scale, IS_INT4: tl.constexpr, OUTS: tl.constexpr, ROWS: tl.constexpr):
    scale = scale.to(tl.float32)
    return tl.broadcast_to((scale * 0.0625 if IS_INT4 else scale)[:, None], [OUTS, ROWS])
