"""Repetition, frequency and presence penalties, in place on logits [R, V] float32."""

import torch
from torch import Tensor

from ops.checks import penalty_sizes


def apply_penalties(
    logits: Tensor,
    history_ids: Tensor,
    history_starts: Tensor,
    history_lengths: Tensor,
    history_num_prompt: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> None:
    columns = (history_starts, history_lengths, history_num_prompt, presence, frequency, repetition)
    penalty_sizes(logits, history_ids, *columns)
    lengths = history_lengths.long()
    rows = torch.repeat_interleave(torch.arange(len(logits), device=logits.device), lengths)
    index = torch.arange(len(rows), device=logits.device) - (lengths.cumsum(0) - lengths)[rows]
    is_output = index >= history_num_prompt.long()[rows]
    ids = history_ids[history_starts.long()[rows] + index]
    cells, inverse = torch.unique(rows * logits.shape[1] + ids, return_inverse=True)
    counts = torch.zeros(len(cells), device=logits.device).index_add_(0, inverse, is_output.float())
    rows = cells // logits.shape[1]
    values = logits.view(-1)[cells]
    values = torch.where(values > 0, values / repetition[rows], values * repetition[rows])
    values -= frequency[rows] * counts + presence[rows] * (counts > 0)
    logits.view(-1)[cells] = values
