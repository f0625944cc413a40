"""What a quantized weight stands for: the arithmetic that every backend shares, to the bit.

A row is cut into groups of GROUP inputs; none straddles a leaf, the last one of a leaf may be shorter. So a row is quantized
alike however its weight is cut over ranks. A number becomes its group's scale times a small integer.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ops.interface import Quantization

GROUP = 64
SMALLEST_SCALE = torch.finfo(torch.float32).smallest_normal
INT4_DIVISORS = [7.0 + 0.5 * step for step in range(8)]


def quantize(weight: Tensor, quantization: Quantization | None, num_leaves: int = 1) -> Tensor:
    """weight [rows, in] -> what it is stored as, [rows, in] float32, contiguous; `in` is cut into num_leaves equal leaves.

    A group that holds a NaN or an infinity becomes NaN.
    """
    if quantization is None:
        return weight.float()
    num_rows, num_in = weight.shape
    leaf = num_in // num_leaves
    leaves = pad(weight.float().view(num_rows, num_leaves, leaf), (0, -leaf % GROUP))
    groups = leaves.view(num_rows, -1, GROUP)
    stored = (_quantize_int8 if quantization == "int8" else _quantize_int4)(groups)
    stored = torch.where(groups.isfinite().all(-1, keepdim=True), stored, torch.nan)
    return stored.view(num_rows, num_leaves, -1)[:, :, :leaf].reshape(num_rows, num_in).contiguous()


def _quantize_int8(groups: Tensor) -> Tensor:
    """groups [..., GROUP] float32. The largest magnitude becomes 127."""
    largest = groups.abs().amax(-1, keepdim=True)
    scale = _to_bfloat16(largest / 127.0)
    return torch.where(largest < 127.0 * SMALLEST_SCALE, 0.0, scale * _codes(groups, scale, -127.0, 127.0))


def _quantize_int4(groups: Tensor) -> Tensor:
    """groups [..., GROUP] float32. Of the scales that make -8, nearly that, or more than that of the extreme of greatest

    magnitude, the one with the least squared error; the first of equals.
    """
    high, low = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    peak = torch.where(high >= -low, high, low)
    best, least = torch.zeros_like(groups), torch.zeros_like(peak)
    for number, divisor in enumerate(INT4_DIVISORS):
        scale = _to_bfloat16(peak / -divisor)
        stored = scale * _codes(groups, scale, -8.0, 7.0)
        error = _sum_of_squares(groups - stored)
        is_better = (error < least) | (number == 0)
        best, least = torch.where(is_better, stored, best), torch.where(is_better, error, least)
    return torch.where(peak.abs() < 16.0 * SMALLEST_SCALE, 0.0, best)


def _codes(groups: Tensor, scale: Tensor, lowest: float, highest: float) -> Tensor:
    return (groups * (1.0 / scale)).round().clamp(lowest, highest)


def _sum_of_squares(x: Tensor) -> Tensor:
    """Over the last dimension, in an order that no library decides: four rows of sixteen, then halves."""
    squares = (x * x).unflatten(-1, (4, 16))
    total = squares[..., 0, :] + squares[..., 1, :] + squares[..., 2, :] + squares[..., 3, :]
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total


def _to_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()
