"""Codes in words of 32 bits."""

import pytest
import torch

from parallel.published.words import AWQ_PLACES, WORD_BITS, unpack, words_of


def packed(codes: torch.Tensor, bits: int, places: tuple[int, ...]) -> torch.Tensor:
    """codes [rows, columns] -> words [rows, W] int32, in Python's own integers."""
    each = WORD_BITS // bits
    rows = [
        [
            sum(code << bits * places[place] for place, code in enumerate(row[start : start + each]))
            for start in range(0, len(row), each)
        ]
        for row in codes.tolist()
    ]
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)  # the highest bit becomes the sign


@pytest.mark.parametrize(("bits", "places"), [(4, None), (8, None), (2, None), (4, AWQ_PLACES)])
@pytest.mark.parametrize("part", [slice(0, 48), slice(16, 32), slice(3, 21), slice(47, 48)])
def test_a_slice_is_read_from_the_words_that_it_lies_in(bits: int, places: tuple[int, ...] | None, part: slice) -> None:
    codes = torch.randint(0, 1 << bits, (3, 48), dtype=torch.int64)
    codes[:, -1] = (1 << bits) - 1
    words = packed(codes, bits, places or tuple(range(WORD_BITS // bits)))
    read = unpack(words[:, words_of(part, bits)], bits, part, places)
    assert torch.equal(read, codes[:, part].to(torch.uint8))
    assert read.is_contiguous()
