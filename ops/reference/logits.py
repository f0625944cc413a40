"""What is done to logits before sampling: penalties, biases, allowed tokens. All in place, on [R,
V] float32.
"""

import torch
from torch import Tensor

from ops.interface import check_shape


def apply_penalties(
    logits: Tensor,
    history_starts: Tensor,
    history_ids: Tensor,
    history_num_prompt: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> None:
    check_shape("logits", logits, (None, None), torch.float32)
    check_shape("history_num_prompt", history_num_prompt, (logits.shape[0],))
    rows = _rows(logits, history_starts, history_ids)
    index = torch.arange(len(rows), device=logits.device) - history_starts.long()[rows]
    is_output = index >= history_num_prompt.long()[rows]
    cells, inverse = torch.unique(rows * logits.shape[1] + history_ids, return_inverse=True)
    counts = torch.zeros(len(cells), device=logits.device).index_add_(0, inverse, is_output.float())
    rows = cells // logits.shape[1]
    values = logits.view(-1)[cells]
    values = torch.where(values > 0, values / repetition[rows], values * repetition[rows])
    values -= frequency[rows] * counts + presence[rows] * (counts > 0)
    logits.view(-1)[cells] = values


def apply_bias(logits: Tensor, starts: Tensor, ids: Tensor, values: Tensor) -> None:
    check_shape("logits", logits, (None, None), torch.float32)
    check_shape("values", values, tuple(ids.shape), torch.float32)
    logits.index_put_((_rows(logits, starts, ids), ids.long()), values, accumulate=True)


def apply_allowed(logits: Tensor, starts: Tensor, ids: Tensor) -> None:
    check_shape("logits", logits, (None, None), torch.float32)
    cells = (_rows(logits, starts, ids), ids.long())
    allowed = logits[cells]
    logits.masked_fill_((starts.diff() > 0)[:, None], -torch.inf)
    logits[cells] = allowed


def _rows(logits: Tensor, starts: Tensor, ids: Tensor) -> Tensor:
    """The row that each of `ids` belongs to, [*] int64."""
    check_shape("starts", starts, (logits.shape[0] + 1,))
    check_shape("ids", ids, (None,))
    rows = torch.arange(logits.shape[0], device=logits.device)
    return torch.repeat_interleave(rows, starts.diff(), output_size=ids.shape[0])
