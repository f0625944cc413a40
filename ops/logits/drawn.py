"""Tokens, and whether the rows that they were drawn from had any."""

import torch
from torch import Tensor


def drawn(tokens: Tensor, logits: Tensor) -> Tensor:
    """What `Ops.sample` returns, [2, R] int32, of some token a row [R] and logits [R, V]."""
    is_finite = logits.amax(dim=1).isfinite()  # NaN spreads into the maximum
    return torch.stack((torch.where(is_finite, tokens, 0).int(), is_finite.int()))
