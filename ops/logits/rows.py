"""Ragged columns: which row a flat array's element belongs to."""

import torch
from torch import Tensor

from ops.interface import check_shape


def rows_of(logits: Tensor, starts: Tensor, ids: Tensor) -> Tensor:
    """The row of logits [R, V] that each of ids [*] belongs to, [*] int64; starts [R + 1]."""
    check_shape("starts", starts, (logits.shape[0] + 1,))
    check_shape("ids", ids, (None,))
    rows = torch.arange(logits.shape[0], device=logits.device)
    return torch.repeat_interleave(rows, starts.diff(), output_size=ids.shape[0])
