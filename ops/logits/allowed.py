"""Allowed token ids: rows that name any can have no other."""

import torch
from torch import Tensor

from ops.interface import check_shape
from ops.logits.rows import rows_of


def apply_allowed(logits: Tensor, starts: Tensor, ids: Tensor) -> None:
    """In place on logits [R, V] float32: in rows that name any ids, every other token is banned."""
    check_shape("logits", logits, (None, None), torch.float32)
    cells = (rows_of(logits, starts, ids), ids.long())
    allowed = logits[cells]
    logits.masked_fill_((starts.diff() > 0)[:, None], -torch.inf)
    logits[cells] = allowed
