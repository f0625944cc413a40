"""Masks of rows of logits, in plain torch, the same on every device."""

import torch
from torch import Tensor

from ops.checks import mask_sizes


def apply_mask(logits: Tensor, mask_starts: Tensor, mask_words: Tensor) -> None:
    """In place on logits [R, V] float32; see `Ops.apply_mask`."""
    num_rows, vocab_size = mask_sizes(logits, mask_starts, mask_words)
    num_words = -(-vocab_size // 32)
    masks = mask_words.view(-1, num_words)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    banned = ((masks[:, :, None] >> bits) & 1 == 0).view(-1, num_words * 32)[:, :vocab_size]
    rows = torch.arange(num_rows, device=logits.device)
    masked = torch.repeat_interleave(rows, mask_starts.diff() // num_words, output_size=masks.shape[0])
    logits[masked] = logits[masked].masked_fill(banned, -torch.inf)
