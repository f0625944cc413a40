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


def apply_bans(logits: Tensor, last_ids: Tensor, starts: Tensor, banning_ids: Tensor, ids: Tensor) -> None:
    """In place on logits [R, V] float32: ids [*] of row r are banned where last_ids [R] int32, the
    row's token before, is their banning_ids [*] int32.
    """
    check_shape("logits", logits, (None, None), torch.float32)
    check_shape("last_ids", last_ids, (logits.shape[0],), torch.int32)
    check_shape("banning_ids", banning_ids, tuple(ids.shape), torch.int32)
    rows = rows_of(logits, starts, ids)
    values = torch.where(last_ids[rows] == banning_ids, float("-inf"), 0.0)
    logits.index_put_((rows, ids.long()), values, accumulate=True)
