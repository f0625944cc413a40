"""Masks: which tokens a grammar allows in its row."""

import torch
from torch import Tensor

from ops.interface import check_shape
from ops.logits.rows import rows_of


def apply_mask(logits: Tensor, starts: Tensor, words: Tensor) -> None:
    """In place on logits [R, V] float32: in rows that have words, each token is banned whose bit is
    0. A row has none or W = ceil(V / 32) words, int32, bit t of them being token t's.
    """
    check_shape("logits", logits, (None, None), torch.float32)
    num_rows, vocab_size = logits.shape
    num_masks = words.shape[0] * 32 // (vocab_size + -vocab_size % 32)
    octets = words.view(torch.uint8).view(num_masks, -1)
    banned = _bits_of_octets(logits.device)[octets.int()].view(torch.bool).view(num_masks, -1)[:, :vocab_size]
    if num_masks == num_rows:
        logits.masked_fill_(banned, -torch.inf)
        return
    rows = rows_of(logits, starts, words)[:: octets.shape[1] // 4]
    logits[rows] = logits[rows].masked_fill(banned, -torch.inf)


def _bits_of_octets(device: torch.device) -> Tensor:
    """[256] int64: of each octet eight bools, the lowest bit first: whether it is 0."""
    octets = torch.arange(256, dtype=torch.uint8, device=device)[:, None]
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return ((octets >> shifts) & 1 == 0).contiguous().view(torch.int64).view(256)
