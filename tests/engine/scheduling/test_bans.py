"""What is left to sample, of token ids and of a grammar's mask."""

import numpy as np
import pytest

from engine.scheduling.bans import nothing_left

VOCAB = 64


def mask_of(*token_ids: int) -> np.ndarray:
    bits = np.zeros(VOCAB, bool)
    bits[list(token_ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.parametrize(
    ("allowed", "banned", "mask", "is_nothing"),
    [
        (None, {1, 2}, None, False),  # a vocabulary is larger than what can be banned
        ([1, 2], {1}, None, False),
        ([1, 2], {1, 2, 3}, None, True),
        (None, set(), mask_of(), True),
        (None, {5}, mask_of(5), True),
        (None, {5}, mask_of(5, 37), False),
        (None, {31, 63}, mask_of(31, 63), True),  # the words' highest bits, which are signs
        ([31], set(), mask_of(31), False),
        ([30, 32], set(), mask_of(31), True),
        ([31, 63], {31}, mask_of(31), True),
        (None, {VOCAB + 7}, mask_of(3), False),  # a token that the model does not have
    ],
)
def test_nothing_is_left(allowed: list[int] | None, banned: set[int], mask: np.ndarray | None, is_nothing: bool):
    assert nothing_left(allowed, banned, mask) is is_nothing


def test_a_mask_is_not_changed() -> None:
    mask = mask_of(5, 31)
    nothing_left(None, {5, 31}, mask)
    assert np.array_equal(mask, mask_of(5, 31))
