"""The numbers that a weight quantized to integers represents: arithmetic that every backend shares,
to the bit.

A row is cut into groups of GROUP inputs; none straddles a leaf, the last one of a leaf may be
shorter. So a row is quantized alike however its weight is cut over ranks. A number becomes its
group's scale times a small integer; of eight bits, the groups of up to INT8_SPAN
neighbouring inputs of a leaf have the same scale.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ops.interface import Quantization
from ops.reference.matmul.float8 import decode, encode, quotient

GROUP = 64
INT8_SPAN = 16 * GROUP  # inputs of eight bits with one scale
SMALLEST_SCALE = torch.finfo(torch.float32).smallest_normal
INT4_DIVISORS = [7.0 + 0.5 * step for step in range(8)]


def quantize(weight: Tensor, quantization: Quantization | None, num_leaves: int = 1) -> Tensor:
    """weight [rows, in] -> the numbers it is stored as, [rows, in] float32, contiguous; `in` is cut
    into num_leaves equal leaves.

    What shares a scale becomes NaN with a NaN or an infinity in it.
    """
    if quantization is None:
        return weight.float()
    if quantization == "fp8":
        return decode(*encode(weight, num_leaves))
    codes, scales = encode_groups(weight, quantization, num_leaves)
    leaf = weight.shape[1] // num_leaves
    return (codes.float() * scales[..., None]).flatten(2)[:, :, :leaf].flatten(1).contiguous()


def encode_groups(weight: Tensor, quantization: Quantization, num_leaves: int) -> tuple[Tensor, Tensor]:
    """weight [rows, in] -> codes [rows, num_leaves, groups, GROUP] int8, zeros behind a leaf's end;
    scales, without GROUP,

    float32 numbers that bfloat16 holds.
    """
    num_rows, num_in = weight.shape
    leaf = num_in // num_leaves
    leaves = pad(weight.float().view(num_rows, num_leaves, leaf), (0, -leaf % GROUP))
    groups = leaves.view(num_rows, num_leaves, -1, GROUP)
    codes, scales = (_encode_int8 if quantization == "int8" else _encode_int4)(groups)
    is_finite = scales.isfinite()  # a NaN or an infinity makes its scale one
    codes, scales = torch.where(is_finite & (scales != 0), codes, 0.0), torch.where(is_finite, scales, torch.nan)
    return codes.to(torch.int8), scales.squeeze(-1)


def _encode_int8(groups: Tensor) -> tuple[Tensor, Tensor]:
    """groups [..., groups, GROUP] float32. The largest magnitude of a span becomes 127."""
    spans = groups.abs().amax(-1, keepdim=True).split(INT8_SPAN // GROUP, -2)
    largest = torch.cat([span.amax(-2, keepdim=True).expand_as(span) for span in spans], -2)
    scale = torch.where(largest < 127.0 * SMALLEST_SCALE, 0.0, _to_bfloat16(quotient(largest, 127.0)))
    return _codes(groups, scale, -127.0, 127.0), scale


def _encode_int4(groups: Tensor) -> tuple[Tensor, Tensor]:
    """groups [..., GROUP] float32. Of the scales that make -8, nearly that, or more than that of
    the extreme of greatest

    magnitude, the one with the least squared error; the first of equals.
    """
    high, low = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    peak = torch.where(high >= -low, high, low)
    best_codes, best_scale, least = torch.zeros_like(groups), torch.zeros_like(peak), torch.zeros_like(peak)
    for number, divisor in enumerate(INT4_DIVISORS):
        scale = _to_bfloat16(quotient(peak, -divisor))
        codes = _codes(groups, scale, -8.0, 7.0)
        error = _sum_of_squares(groups - scale * codes)
        is_better = (error < least) | (number == 0)
        best_codes, best_scale = torch.where(is_better, codes, best_codes), torch.where(is_better, scale, best_scale)
        least = torch.where(is_better, error, least)
    return best_codes, torch.where(peak.abs() < 16.0 * SMALLEST_SCALE, 0.0, best_scale)


def _codes(groups: Tensor, scale: Tensor, lowest: float, highest: float) -> Tensor:
    return (groups * (1.0 / scale)).round().clamp(lowest, highest)


def _sum_of_squares(x: Tensor) -> Tensor:
    """Over the last dimension, in an order that does not depend on a library: four rows of sixteen,
    then halves.
    """
    squares: Tensor = (x * x).unflatten(-1, (4, 16))
    total = squares[..., 0, :] + squares[..., 1, :] + squares[..., 2, :] + squares[..., 3, :]
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total


def _to_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()
