"""Integers of 32 bits that hold several codes: which words a slice lies in, and its codes."""

import torch
from torch import Tensor

WORD_BITS = 32
# AWQ's gemm kernels: where in a word the columns 0 to 7 are, four bits each.
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def words_of(part: slice, bits: int) -> slice:
    """The words that hold a slice of codes, packed one after the other."""
    each = WORD_BITS // bits
    return slice(part.start // each, -(-part.stop // each))


def in_each_code(number: int, bits: int) -> int:
    """A word whose codes are all `number`. Packers subtract one from whole words: where a code was
    0, they borrowed from the next one, to which adding such a word gives it back.
    """
    return sum(number << place for place in range(0, WORD_BITS, bits))


def unpack(words: Tensor, bits: int, part: slice, places: tuple[int, ...] | None = None) -> Tensor:
    """words [rows, W] int32 of words_of(part) -> codes [rows, length of part] uint8.

    places: where in a word each code is; in order of significance if not given.
    """
    each = WORD_BITS // bits
    shifts = torch.tensor(places or range(each), dtype=torch.int32) * bits
    codes = (words[..., None] >> shifts) & ((1 << bits) - 1)
    skipped = part.start % each
    return codes.to(torch.uint8).flatten(1)[:, skipped : skipped + part.stop - part.start].contiguous()
