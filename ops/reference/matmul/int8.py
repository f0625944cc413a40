"""Products of 8-bit integers: a published weight's codes times inputs that are rounded to as many
bits.

A row of inputs (within a leaf) has one scale, by which its largest magnitude is 127, or the one
that the checkpoint has for all rows. Products are added as integers, exactly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ops.published import PublishedWeight

LARGEST = 127.0
SMALLEST_PEAK = 1e-30  # rows of smaller magnitude become zeros


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """Of a row: integers and one scale."""

    codes: Tensor  # [out, in] float64, which holds their products' sums exactly
    scales: Tensor  # [out] float32
    input_scale: float | None  # of all rows of inputs; None: one is computed for each

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @classmethod
    def of(cls, weight: PublishedWeight) -> "Int8Weight":
        return cls(weight.differences().double(), weight.scales[:, 0].contiguous(), weight.input_scale)


def int8_linear(x: Tensor, weight: Int8Weight) -> Tensor:
    """x [T, in] dtype -> [T, out] float32."""
    codes, scales = encode_rows(x, weight.input_scale)
    sums = (codes.double() @ weight.codes.T).float()
    return sums * (scales[:, None] * weight.scales)


def encode_rows(x: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """x [T, in] -> codes [T, in] float32, whole numbers from -128 to 127, and scales [T]."""
    rows = x.float()
    if scale is None:
        scales = rows.abs().amax(1).clamp(min=SMALLEST_PEAK) / rows.new_full((), LARGEST)
    else:
        scales = rows.new_full(rows.shape[:1], scale)
    return (rows * (1.0 / scales)[:, None]).round().clamp(-128.0, 127.0), scales
