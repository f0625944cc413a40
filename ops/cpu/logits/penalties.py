"""Penalties of rows of logits."""

import torch
from torch import Tensor

from ops.checks import penalty_sizes
from ops.cpu.library import library

_FEW_TOKENS = 1 << 15  # of all rows: another thread would come too late to help


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
    """In place on logits [R, V] float32; see `Ops.apply_penalties`. Ids that are no tokens change
    nothing.
    """
    columns = (history_starts, history_lengths, history_num_prompt, presence, frequency, repetition)
    num_rows, vocab_size = penalty_sizes(logits, history_ids, *columns)
    if num_rows and (history_starts.numpy() + history_lengths.numpy()).max() > len(history_ids):
        raise ValueError(f"rows end after their {len(history_ids)} tokens")
    library().squadron_apply_penalties(
        logits.data_ptr(),
        num_rows,
        vocab_size,
        history_ids.data_ptr(),
        *(column.data_ptr() for column in columns),
        torch.get_num_threads() if len(history_ids) > _FEW_TOKENS else 1,
    )
