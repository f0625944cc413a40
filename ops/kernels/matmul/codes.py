"""The inner loops of linears whose weights are codes of 4 or 8 bits: the numbers that they stand
for, rounded once to the model's dtype, times inputs; and integers times inputs that are rounded to
such.

A product of these numbers takes its inputs in order, as one with a plain weight does: the bits are
those of `decode_kernel`'s weight. Codes become numbers without conversions of integers, of which a
processor does few: a code among the lower bits of a number's significand is that much more.
"""

from typing import Any

import triton
import triton.language as tl

INTEGERS = tl.constexpr(128)  # inputs that `of_rounded` multiplies at once


@triton.constexpr_function
def is_bfloat16(dtype: Any) -> bool:
    return bool(dtype == tl.bfloat16)


@triton.constexpr_function
def is_float32(dtype: Any) -> bool:
    return bool(dtype == tl.float32)


@triton.jit
def of_codes(
    x_rows,
    codes,  # [leaves' pieces, rows of the weight, words], as `packing` has them
    scales,  # [leaves' pieces, rows of the weight] int32, each below its zero point; or float32
    zeros,  # beside float32 scales: the same, int32, or None: the middle code
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
    """[OUTS, ROWS] float32, a piece after the other."""
    NUM_ROWS: tl.constexpr = NUM_OUT * (2 if GATED else 1)
    PIECES: tl.constexpr = (LEAF + PIECE - 1) // PIECE
    DTYPE: tl.constexpr = x_rows.dtype.element_ty
    inputs = tl.arange(0, PIECE)[None, :]
    cells = (outs + leaf * (PIECES * NUM_ROWS)).to(tl.int64)
    acc = tl.zeros([OUTS, ROWS], tl.float32)
    up_acc = tl.zeros([OUTS, ROWS], tl.float32)
    for piece in tl.range(0, PIECES, num_stages=STAGES):
        start = piece * PIECE
        if LEAF % PIECE == 0:
            part = tl.load(x_rows + start + inputs)
        else:
            part = tl.load(x_rows + start + inputs, mask=start + inputs < LEAF, other=0.0)
        part = tl.trans(part)
        acc = tl.dot(numbers(codes, scales, zeros, cells, KIND, PIECE, OUTS, DTYPE), part, acc, input_precision="ieee")
        if GATED:
            weights = numbers(codes, scales, zeros, cells + NUM_OUT, KIND, PIECE, OUTS, DTYPE)
            up_acc = tl.dot(weights, part, up_acc, input_precision="ieee")
        cells += NUM_ROWS
    return acc, up_acc


@triton.jit(do_not_specialize=["num_rows"])
def decode_kernel(codes, scales, zeros, output, num_rows, WIDTH: tl.constexpr, LEAF: tl.constexpr, KIND: tl.constexpr,
                  PIECE: tl.constexpr, OUTS: tl.constexpr):  # fmt: skip
    """Grid (leaves' pieces, tiles of rows): output [num_rows, WIDTH], of leaves of LEAF inputs."""
    PIECES: tl.constexpr = (LEAF + PIECE - 1) // PIECE
    rows = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    cells = (tl.minimum(rows, num_rows - 1) + tl.program_id(0) * num_rows).to(tl.int64)
    decoded = numbers(codes, scales, zeros, cells, KIND, PIECE, OUTS, output.dtype.element_ty)
    inputs = tl.program_id(0) % PIECES * PIECE + tl.arange(0, PIECE)
    columns = tl.program_id(0) // PIECES * LEAF + inputs
    exists = (rows < num_rows)[:, None] & (inputs < LEAF)[None, :]
    tl.store(output + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :], decoded, mask=exists)


@triton.jit
def numbers(codes, scales, zeros, cells, KIND: tl.constexpr, PIECE: tl.constexpr, OUTS: tl.constexpr,
            DTYPE: tl.constexpr):  # fmt: skip
    """A piece of the rows `cells` [OUTS]: [OUTS, PIECE] DTYPE."""
    WORDS: tl.constexpr = PIECE // 8 if KIND == "codes4" else PIECE // 4
    words = tl.load(codes + cells[:, None] * WORDS + tl.arange(0, WORDS)[None, :]).to(tl.uint32, bitcast=True)
    scale = tl.load(scales + cells)
    if scales.dtype.element_ty == tl.int32:
        zero = scale >> 16
        scale = (scale & 0xFFFF).to(tl.uint16).to(DTYPE, bitcast=True)
    elif zeros is None:
        zero = tl.full([OUTS], 8 if KIND == "codes4" else 128, tl.int32)
    else:
        zero = tl.load(zeros + cells)
    if KIND == "codes4":
        differences = _differences4(words, zero, PIECE, OUTS, DTYPE)
    elif KIND == "float8":
        differences = _float8(words, PIECE, OUTS)
    else:
        differences = _differences8(words, zero, KIND == "codes8", PIECE, OUTS, DTYPE)
    if scale.dtype == DTYPE and differences.dtype == DTYPE:
        return differences * scale[:, None]
    else:
        return (differences.to(tl.float32) * scale.to(tl.float32)[:, None]).to(DTYPE)


@triton.jit
def _differences4(words, zero, PIECE: tl.constexpr, OUTS: tl.constexpr, DTYPE: tl.constexpr):
    """Codes less zero points, exact."""
    # The last bit of 2^7, or 2^10, is worth one. With 64 more no difference is negative.
    FIRST: tl.constexpr = 0x4300 if is_bfloat16(DTYPE) else 0x6400
    MORE: tl.constexpr = 192 if is_bfloat16(DTYPE) else 1088
    bias = ((FIRST + 64) - zero).to(tl.uint32)
    bias = ((bias << 16) + bias)[:, None]
    if is_float32(DTYPE):
        bias = tl.zeros([OUTS, 1], tl.uint32)
    first = _halves((words & 0x000F000F) + bias, DTYPE)
    second = _halves(((words >> 4) & 0x000F000F) + bias, DTYPE)
    third = _halves(((words >> 8) & 0x000F000F) + bias, DTYPE)
    fourth = _halves(((words >> 12) & 0x000F000F) + bias, DTYPE)
    every = tl.join(tl.join(first, second), tl.join(third, fourth))
    every = tl.reshape(every, [OUTS, 4, PIECE // 32, 2, 2, 2])  # thread, word, odd, eight, sixteen
    every = tl.reshape(tl.permute(every, [0, 2, 5, 4, 1, 3]), [OUTS, PIECE])
    if is_float32(DTYPE):
        every -= zero.to(tl.float32)[:, None]
    else:
        every -= tl.full([1, 1], MORE, tl.float32).to(DTYPE)
    return every


@triton.jit
def _differences8(words, zero, EVEN: tl.constexpr, PIECE: tl.constexpr, OUTS: tl.constexpr, DTYPE: tl.constexpr):
    """As `_differences4`. EVEN: all zero points are the middle code."""
    if is_bfloat16(DTYPE):
        # Eight bits are one more than the significand has: the upper one is a number of its own.
        first = _halves((words & 0x007F007F) | 0x43004300, DTYPE) - _halves((words & 0x00800080) ^ 0x43804380, DTYPE)
        words = words >> 8
        second = _halves((words & 0x007F007F) | 0x43004300, DTYPE) - _halves((words & 0x00800080) ^ 0x43804380, DTYPE)
        every = _in_order(first, second, PIECE, OUTS)
        if not EVEN:
            every -= (zero - 128).to(DTYPE)[:, None]
        return every
    bias = (0x6500 - zero).to(tl.uint32)
    bias = ((bias << 16) + bias)[:, None]
    if is_float32(DTYPE):
        bias = tl.zeros([OUTS, 1], tl.uint32)
    first = _halves((words & 0x00FF00FF) + bias, DTYPE)
    second = _halves(((words >> 8) & 0x00FF00FF) + bias, DTYPE)
    every = _in_order(first, second, PIECE, OUTS)
    if is_float32(DTYPE):
        every -= zero.to(tl.float32)[:, None]
    else:
        every -= tl.full([1, 1], 1280, tl.float32).to(DTYPE)
    return every


@triton.jit
def _float8(words, PIECE: tl.constexpr, OUTS: tl.constexpr):
    """float16 holds each."""
    first = (words & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    second = ((words >> 8) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    third = ((words >> 16) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    fourth = (words >> 24).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    return _in_order(tl.join(first, third), tl.join(second, fourth), PIECE, OUTS)


@triton.jit
def _halves(words, DTYPE: tl.constexpr):
    """The two numbers of 16 bits in each word: [.., 2]. float32: of integers."""
    low, high = (words & 0xFFFF).to(tl.uint16), (words >> 16).to(tl.uint16)
    if is_float32(DTYPE):
        return tl.join(low.to(DTYPE), high.to(DTYPE))
    else:  # Triton compiles what follows a condition, also behind a return
        return tl.join(low.to(DTYPE, bitcast=True), high.to(DTYPE, bitcast=True))


@triton.jit
def _in_order(first, second, PIECE: tl.constexpr, OUTS: tl.constexpr):
    """Of words of four codes, [OUTS, words, 2] each: [OUTS, PIECE]."""
    every = tl.reshape(tl.join(first, second), [OUTS, 4, PIECE // 16, 2, 2])  # thread, word, odd, eight
    return tl.reshape(tl.permute(every, [0, 2, 4, 1, 3]), [OUTS, PIECE])


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
