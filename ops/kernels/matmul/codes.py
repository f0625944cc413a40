"""The inner loops of linears whose weights were published quantized: codes less zero points, which
the model's dtype holds exactly, times inputs; and integers times inputs that are rounded to such.
"""

import triton
import triton.language as tl

INTEGERS = tl.constexpr(128)  # inputs that `of_rounded` multiplies at once


@triton.jit
def of_codes(
    x_rows,
    codes,  # [leaves' steps, rows of the weight, bytes] uint8
    scales,  # [leaves' pieces, rows of the weight]
    zeros,  # the same, or None: the middle code
    leaf,
    outs,  # [OUTS]
    NUM_OUT: tl.constexpr,
    LEAF: tl.constexpr,
    KIND: tl.constexpr,
    PIECE: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """[OUTS, ROWS] float32: steps of a piece, or of half a long one, one after the other, each
    one's sum times its piece's scale.
    """
    NUM_ROWS: tl.constexpr = NUM_OUT * (2 if GATED else 1)
    STEP: tl.constexpr = PIECE if PIECE < 64 else 64
    STEPS: tl.constexpr = LEAF // STEP
    BYTES: tl.constexpr = STEP // 2 if KIND == "codes4" else STEP
    inputs = tl.arange(0, BYTES)[None, :]
    code_rows = codes + (outs + leaf * (STEPS * NUM_ROWS)).to(tl.int64)[:, None] * BYTES + inputs
    of_leaf = (outs + leaf * (LEAF // PIECE * NUM_ROWS)).to(tl.int64)
    acc = tl.zeros([OUTS, ROWS], tl.float32)
    up_acc = tl.zeros([OUTS, ROWS], tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        cells = of_leaf + step // (PIECE // STEP) * NUM_ROWS
        low = tl.trans(tl.load(x_rows + step * STEP + inputs))
        high = tl.trans(tl.load(x_rows + step * STEP + BYTES + inputs)) if KIND == "codes4" else low
        acc = _add_step(acc, code_rows, scales, zeros, cells, low, high, KIND)
        if GATED:
            up_acc = _add_step(up_acc, code_rows + NUM_OUT * BYTES, scales, zeros, cells + NUM_OUT, low, high, KIND)
        code_rows += NUM_ROWS * BYTES
    return acc, up_acc


@triton.jit
def _add_step(acc, code_rows, scales, zeros, cells, low, high, KIND: tl.constexpr):
    """acc plus the step's product; `low`, `high`: its inputs [inputs, ROWS], of codes4 in two
    halves.
    """
    codes = tl.load(code_rows)
    if KIND == "float8":
        product = tl.dot(codes.to(tl.float8e4nv, bitcast=True).to(low.dtype), low, input_precision="ieee")
    else:
        if zeros is None:
            zero = tl.full([1, 1], 8 if KIND == "codes4" else 128, tl.float32)
        else:
            zero = tl.load(zeros + cells).to(tl.float32)[:, None]
        if KIND == "codes4":
            product = tl.dot(((codes & 15).to(tl.float32) - zero).to(low.dtype), low, input_precision="ieee")
            upper = ((codes >> 4).to(tl.float32) - zero).to(low.dtype)
            product = tl.dot(upper, high, product, input_precision="ieee")
        else:
            product = tl.dot((codes.to(tl.float32) - zero).to(low.dtype), low, input_precision="ieee")
    return tl.fma(product, tl.broadcast_to(tl.load(scales + cells).to(tl.float32)[:, None], product.shape), acc)


@triton.jit
def of_rounded(
    x_rows,  # of int8
    weight_rows,  # of int8
    up,  # from gate's rows to up's
    scales,  # [OUTS] of them, float32
    up_scales,  # from gate's scales to up's
    by_row,  # [1, ROWS] float32
    LEAF: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """[OUTS, ROWS] float32: sums of integers, which are exact, times both scales."""
    inputs = tl.arange(0, INTEGERS)[None, :]
    acc = tl.zeros([OUTS, ROWS], tl.int32)
    up_acc = tl.zeros([OUTS, ROWS], tl.int32)
    for start in tl.range(0, LEAF, INTEGERS, num_stages=STAGES):
        exists = start + inputs < LEAF
        part = tl.trans(tl.load(x_rows + start + inputs, mask=exists, other=0))
        acc = tl.dot(tl.load(weight_rows + start + inputs, mask=exists, other=0), part, acc, out_dtype=tl.int32)
        if GATED:
            weights = tl.load(weight_rows + up + start + inputs, mask=exists, other=0)
            up_acc = tl.dot(weights, part, up_acc, out_dtype=tl.int32)
    product = acc.to(tl.float32) * (tl.load(scales)[:, None] * by_row)
    up_product = product
    if GATED:
        up_product = up_acc.to(tl.float32) * (tl.load(scales + up_scales)[:, None] * by_row)
    return product, up_product
