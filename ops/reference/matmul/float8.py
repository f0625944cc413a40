"""float8 (e4m3): the numbers that weights and inputs of a product represent, to the bit on every
backend.

A row, of a weight or of activations, is cut into leaves, and each becomes codes and one scale, by
which its largest magnitude is 448. So a row is encoded alike whatever rows are beside it, and
however its leaves are dealt out over ranks.
"""

import torch
from torch import Tensor

LARGEST = 448.0  # of float8_e4m3fn
SMALLEST_PEAK = 1e-30  # leaves of smaller magnitude become zeros


def encode(rows: Tensor, num_leaves: int) -> tuple[Tensor, Tensor]:
    """rows [R, in] -> codes [R, in] float8_e4m3fn, scales [R, num_leaves] float32. Numbers that are
    not finite become NaN.
    """
    leaves = rows.float().view(rows.shape[0], num_leaves, rows.shape[1] // num_leaves)
    scales = quotient(leaves.abs().amax(2).clamp(min=SMALLEST_PEAK), LARGEST)
    codes = (leaves * (1.0 / scales)[..., None]).to(torch.float8_e4m3fn)
    return codes.view_as(rows), scales


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers that codes [R, in] represent, float32."""
    return (codes.float().view(*scales.shape, codes.shape[1] // scales.shape[1]) * scales[..., None]).view_as(codes)


def quotient(x: Tensor, divisor: float) -> Tensor:
    """Rounded once. On a GPU torch would multiply by a number's reciprocal, but divides by a
    tensor.
    """
    return x / x.new_full((), divisor)


def rounded(rows: Tensor, num_leaves: int) -> Tensor:
    """rows [R, in] as their codes have them, [R, in] float32."""
    return decode(*encode(rows, num_leaves))
