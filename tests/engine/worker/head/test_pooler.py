"""Sums of hidden states: the same whatever rows are summed at once."""

from itertools import pairwise

import numpy as np
import torch

from engine.pooling import LARGEST, UNIT
from engine.worker.head.pooler import MAX_ROWS, pool


def ranges(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, np.int32).reshape(-1, 2)


def test_a_sum_does_not_depend_on_its_parts() -> None:
    torch.manual_seed(0)
    rows = torch.randn(3 * MAX_ROWS, 8) * torch.logspace(-3, 3, 8)
    end = len(rows)
    whole = pool(rows, ranges((5, end))).sums[0]
    for cuts in ([6, 7, 300], [MAX_ROWS], list(range(6, end, 50))):
        edges = [5, *cuts, end]
        parts = pool(rows, ranges(*pairwise(edges))).sums
        assert torch.equal(parts.sum(dim=0), whole)
    expected = rows[5:].double().sum(dim=0)
    torch.testing.assert_close(whole.double() * UNIT, expected, rtol=0, atol=end * UNIT)


def test_one_row_keeps_its_bits() -> None:
    row = torch.tensor([[1.5, -0.00390625, 0.1, 3000.123]])
    pooled = pool(row, ranges((0, 1)))
    assert torch.equal((pooled.sums.double() * UNIT).float(), row)
    assert pooled.are_finite.tolist() == [True]


def test_what_is_not_finite_fails_its_own_range() -> None:
    rows = torch.ones(6, 2)
    rows[1, 0], rows[2, 1], rows[4, 0] = float("nan"), float("inf"), LARGEST
    pooled = pool(rows, ranges((0, 1), (1, 2), (2, 4), (3, 4), (4, 5), (5, 6)))
    assert pooled.are_finite.tolist() == [True, False, False, True, False, True]
