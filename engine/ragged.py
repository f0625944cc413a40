"""Rows of different lengths, one after the other in one array: row s is from starts[s] on, and
before starts[s + 1].
"""

from collections.abc import Sequence

import numpy as np


def starts_of(counts: np.ndarray | Sequence[int]) -> np.ndarray:
    """[S + 1] int32, of rows of `counts` [S] elements."""
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts


def places(firsts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Where each element comes from or goes to: [starts[-1]] int64, for row s firsts[s] and what
    follows.
    """
    shifts = np.asarray(firsts, np.int64) - starts[:-1]
    return np.repeat(shifts, np.diff(starts)) + np.arange(starts[0], starts[-1])


def gathered(values: np.ndarray, firsts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For each row s the values from firsts[s] on."""
    return values.take(places(firsts, starts))
