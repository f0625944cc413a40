"""Repetition, frequency and presence penalties, in place on logits [R, V] float32."""

import torch
from torch import Tensor

from ops.interface import check_shape
from ops.logits.rows import rows_of


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
    rows = rows_of(logits, history_starts, history_ids)
    index = torch.arange(len(rows), device=logits.device) - history_starts.long()[rows]
    is_output = index >= history_num_prompt.long()[rows]
    cells, inverse = torch.unique(rows * logits.shape[1] + history_ids, return_inverse=True)
    counts = torch.zeros(len(cells), device=logits.device).index_add_(0, inverse, is_output.float())
    rows = cells // logits.shape[1]
    values = logits.view(-1)[cells]
    values = torch.where(values > 0, values / repetition[rows], values * repetition[rows])
    values -= frequency[rows] * counts + presence[rows] * (counts > 0)
    logits.view(-1)[cells] = values
