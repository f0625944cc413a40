"""What an op should give: the same arithmetic in float64, rounded once."""

import pytest
import torch
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])


def assert_rounded_once(got: Tensor, want: Tensor, slack: float = 2e-6) -> None:
    """got is `want` (float64) cast once, after float32 arithmetic whose error is at most `slack` of
    the largest value.
    """
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    half_step = torch.finfo(got.dtype).eps / 2 * want.abs() + torch.finfo(got.dtype).smallest_normal
    error = (got.double() - want).abs()
    limit = half_step * 1.01 + slack * want.abs().amax() if want.numel() else half_step
    assert (error <= limit).all(), f"off by {error.max():.3g}, {(error / limit).max():.3g} of what is allowed"
