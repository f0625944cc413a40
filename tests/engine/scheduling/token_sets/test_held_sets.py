"""A set of tokens is sent once while lanes with it run."""

import numpy as np
import pytest

from engine.scheduling.token_sets.held_sets import HeldSets
from engine.scheduling.token_sets.requested import ANY, TokenSet


def tokens(name: bytes) -> TokenSet:
    return TokenSet(ids=np.array([3], np.int32), digest=name)


def numbers(sets: HeldSets) -> list[tuple[int, bytes | None]]:
    return [(number, None if packed is None else packed.digest) for number, packed in sets.take_changes()]


def test_equal_sets_are_one_until_the_last_lane_leaves() -> None:
    sets = HeldSets()
    assert [sets.hold(tokens(name)) for name in (b"a", b"b", b"a")] == [1, 2, 1]
    assert numbers(sets) == [(1, b"a"), (2, b"b")] and numbers(sets) == []
    sets.release(tokens(b"a"))
    assert numbers(sets) == []
    sets.release(tokens(b"a"))
    assert numbers(sets) == [(1, None)]


def test_a_number_is_given_again() -> None:
    sets = HeldSets()
    sets.hold(tokens(b"a"))
    sets.hold(tokens(b"b"))
    sets.release(tokens(b"a"))
    assert sets.hold(tokens(b"c")) == 1 and sets.hold(tokens(b"d")) == 3
    assert numbers(sets) == [(1, b"a"), (2, b"b"), (1, None), (1, b"c"), (3, b"d")]


def test_who_asks_for_nothing_has_no_set() -> None:
    sets = HeldSets()
    assert sets.hold(ANY) == 0
    sets.release(ANY)
    assert numbers(sets) == []


def test_what_is_not_held_cannot_be_released() -> None:
    with pytest.raises(KeyError):
        HeldSets().release(tokens(b"a"))
