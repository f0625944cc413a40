"""Mends Triton's interpreter, which otherwise is silently wrong where our kernels would notice.
Imported for its effect.

- bfloat16 is held as bit patterns, and those are added and multiplied: here it is computed in
  float32 and rounded.
- Conversions to bfloat16 truncate and those to float8 are off by a bit: here they round to nearest,
  as the hardware does.
- A product's sums come from BLAS, whose order depends on the number of rows: here they are taken in
  float64, of sixteen inputs after the other, as tensor cores take 16-bit ones.
- `range()` over a tensor fails with numpy 2.4 and later; a comparison of scalars is not always a
  mask.

For Triton 3.6 to 3.9, with TRITON_INTERPRET=1 set before kernels are imported.
"""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

FLOATS = (tl.bfloat16, tl.float16, tl.float32)
STEP = 16  # inputs
FLOAT8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}

Handle, Builder = interpreter.TensorHandle, interpreter.InterpreterBuilder
_binary_op, _unary_op, _dot = Builder.binary_op, Builder.unary_op, Builder.create_dot
_cast, _fp_to_fp, _patch_lang = Builder.cast_impl, Builder.create_fp_to_fp, interpreter._patch_lang


def widened(handle: Any) -> np.ndarray:
    """The numbers of a handle, float32 if they are bfloat16 or float8."""
    scalar = handle.dtype.scalar
    if scalar in FLOAT8:
        return torch.from_numpy(np.ascontiguousarray(handle.data)).view(FLOAT8[scalar]).float().numpy()
    if scalar != tl.bfloat16:
        return np.asarray(handle.data)
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def rounded(numbers: np.ndarray) -> np.ndarray:
    """float32 as bfloat16's bits, to nearest even."""
    numbers = np.ascontiguousarray(numbers, dtype=np.float32)
    bits = numbers.view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), nearest)


def binary_op(builder: Any, left: Any, right: Any, op: Any) -> Any:
    if tl.bfloat16 in (left.dtype.scalar, right.dtype.scalar):
        numbers = op(widened(left), widened(right))
        return Handle(numbers, tl.int1) if numbers.dtype == np.bool_ else Handle(rounded(numbers), tl.bfloat16)
    result = _binary_op(builder, left, right, op)
    return Handle(result.data, tl.int1) if result.data.dtype == np.bool_ else result


def unary_op(builder: Any, value: Any, op: Any) -> Any:
    if value.dtype.scalar == tl.bfloat16:
        return Handle(rounded(op(widened(value))), tl.bfloat16)
    return _unary_op(builder, value, op)


def create_dot(builder: Any, left: Any, right: Any, acc: Any, *rest: Any) -> Any:
    if all(each.dtype.scalar in (*FLOATS, *FLOAT8) for each in (left, right)):
        wide_left, wide_right, total = widened(left).astype(np.float64), widened(right).astype(np.float64), acc.data
        for first in range(0, wide_left.shape[-1], STEP):
            step = slice(first, first + STEP)
            total = (wide_left[..., step] @ wide_right[..., step, :] + total).astype(acc.data.dtype)
        return Handle(total, acc.dtype.scalar)
    return _dot(builder, left, right, acc, *rest)


def cast_impl(builder: Any, source: Any, target: Any) -> Any:
    before, after = source.dtype.scalar, target.scalar
    if tl.bfloat16 not in (before, after) or before == after:
        return _cast(builder, source, target)
    if after == tl.bfloat16:
        return Handle(rounded(source.data.astype(np.float32)), tl.bfloat16)
    return Handle(widened(source).astype(interpreter._get_np_dtype(after)), after)


def create_fp_to_fp(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
    before, after = source.dtype.scalar, target.scalar
    if before in FLOATS and after in FLOATS and tl.bfloat16 in (before, after):
        return cast_impl(builder, source, target)
    if before in FLOATS and after in FLOAT8:
        numbers = torch.from_numpy(np.ascontiguousarray(widened(source), np.float32))
        limit = torch.finfo(FLOAT8[after]).max
        return Handle(numbers.clamp(-limit, limit).to(FLOAT8[after]).view(torch.uint8).numpy(), after)
    return _fp_to_fp(builder, source, target, rounding)


def create_fabs(builder: Any, value: Any) -> Any:
    return unary_op(builder, value, np.abs)


def patch_lang(function: Any) -> Any:
    scope = _patch_lang(function)
    scope.set_attr(tl.core.tensor, "__index__", lambda self: int(np.asarray(self.handle.data).reshape(-1)[0]))
    return scope


for replacement in (binary_op, unary_op, create_dot, cast_impl, create_fp_to_fp, create_fabs):
    setattr(Builder, replacement.__name__, replacement)
interpreter._patch_lang = patch_lang
np.seterr(all="ignore")  # infinities and NaN are as good as other numbers to a kernel
