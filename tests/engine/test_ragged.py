"""Rows of different lengths in one array."""

import numpy as np
import pytest

from engine.ragged import gathered, places, starts_of


def test_starts() -> None:
    assert starts_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert starts_of(np.array([], np.int32)).tolist() == [0]


def test_places() -> None:
    assert places(np.array([10, 5, 20]), np.array([0, 2, 2, 5])).tolist() == [10, 11, 20, 21, 22]


@pytest.mark.parametrize("counts", [[], [0], [5], [2, 0, 3], [0, 0, 1, 9, 0, 1, 1, 0]])
def test_values_are_taken_row_by_row(counts: list[int]) -> None:
    values = np.arange(100, 200, dtype=np.int32)
    firsts = np.array([7 * row for row in range(len(counts))], np.int64)
    taken = gathered(values, firsts, starts_of(counts))
    assert taken.dtype == np.int32
    expected = [range(100 + 7 * row, 100 + 7 * row + count) for row, count in enumerate(counts)]
    assert taken.tolist() == [value for row in expected for value in row]
