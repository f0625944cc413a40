"""Biases: logit_bias, and the bans of bad words and min_tokens."""

import torch
from torch import Tensor

from ops.interface import check_shape
from ops.logits.rows import rows_of


def apply_bias(logits: Tensor, starts: Tensor, ids: Tensor, values: Tensor) -> None:
    """In place on logits [R, V] float32: logits[r, ids] += values [*]; -inf bans a token."""
    check_shape("logits", logits, (None, None), torch.float32)
    check_shape("values", values, tuple(ids.shape), torch.float32)
    logits.index_put_((rows_of(logits, starts, ids), ids.long()), values, accumulate=True)
