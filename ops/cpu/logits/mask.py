"""Masks of rows of logits."""

import torch
from torch import Tensor

from ops.checks import mask_sizes
from ops.cpu.library import library


def apply_mask(logits: Tensor, mask_starts: Tensor, mask_words: Tensor) -> None:
    """In place on logits [R, V] float32; see `Ops.apply_mask`."""
    num_rows, vocab_size = mask_sizes(logits, mask_starts, mask_words)
    lengths = mask_starts.diff().unique().tolist()
    if set(lengths) - {0, -(-vocab_size // 32)} or int(mask_starts[-1]) != len(mask_words):
        raise ValueError(f"rows have {lengths} words, of {len(mask_words)}; a mask has {-(-vocab_size // 32)}")
    library().squadron_apply_mask(
        logits.data_ptr(),
        num_rows,
        vocab_size,
        mask_starts.data_ptr(),
        mask_words.data_ptr(),
        torch.get_num_threads(),
    )
