"""The arithmetic that decode and prefill share, on one split at a time."""

import math

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from torch import Tensor

from ops.kernels.attention.softmax import attend_split, combine
from tests.ops.kernels.attention.paged import BLOCK, Paged, make_paged
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS
ROWS, HEAD_DIM, LENGTH, TILE = 16, 16, 75, 16


@triton.jit
def split_kernel(
    query, keys, values, table, last_key, largest, total, acc, first, full_end, end, log2_scale,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, ROWS)
    cells = rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    of_split = attend_split(
        tl.load(query + cells), keys, values, table, first, full_end, end, tl.load(last_key + rows), log2_scale,
        1, HEAD_DIM, BLOCK, TILE, 1,
    )  # fmt: skip
    tl.store(largest + rows, of_split[0])
    tl.store(total + rows, of_split[1])
    tl.store(acc + cells, of_split[2])


@triton.jit
def combine_kernel(largest, total, acc, next_largest, next_total, next_acc, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    rows = tl.arange(0, ROWS)
    cells = rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    folded = combine(
        tl.load(largest + rows), tl.load(total + rows), tl.load(acc + cells),
        tl.load(next_largest + rows), tl.load(next_total + rows), tl.load(next_acc + cells),
    )  # fmt: skip
    tl.store(largest + rows, folded[0])
    tl.store(total + rows, folded[1])
    tl.store(acc + cells, folded[2])


Split = tuple[Tensor, Tensor, Tensor]


def split_of(paged: Paged, query: Tensor, last_key: Tensor, first: int, full_end: int, end: int) -> Split:
    """The largest scores (log2), the sums of weights and the weighted values of keys first:end."""
    largest, total = (torch.empty(ROWS, device=DEVICE) for _ in range(2))
    acc = torch.empty(ROWS, HEAD_DIM, device=DEVICE)
    split_kernel[(1,)](
        query, paged.keys, paged.values, paged.tables, last_key, largest, total, acc, first, full_end, end,
        math.log2(math.e) / 4, ROWS=ROWS, HEAD_DIM=HEAD_DIM, BLOCK=BLOCK, TILE=TILE,
    )  # fmt: skip
    return largest, total, acc


def expected(paged: Paged, query: Tensor, last_key: Tensor) -> Tensor:
    """Float64; NaN for a row that sees no key."""
    table = paged.tables[0].long()
    keys, values = (cache.double()[table].flatten(0, 2)[:LENGTH] for cache in (paged.keys, paged.values))
    scores = query.double() @ keys.T / 4
    scores.masked_fill_(torch.arange(LENGTH, device=DEVICE) > last_key[:, None], -torch.inf)
    return scores.softmax(1) @ values


@pytest.fixture
def paged() -> Paged:
    return make_paged([LENGTH], 1, HEAD_DIM, torch.float32)


def test_a_split_is_a_softmax_over_the_keys_that_a_row_sees(paged: Paged) -> None:
    query = torch.randn(ROWS, HEAD_DIM, device=DEVICE)
    last_key = torch.arange(LENGTH - ROWS, LENGTH, dtype=torch.int32, device=DEVICE)
    _, total, acc = split_of(paged, query, last_key, 0, 48, LENGTH)  # all see the first 48
    torch.testing.assert_close(acc / total[:, None], expected(paged, query, last_key).float(), rtol=1e-5, atol=1e-5)


def test_a_masked_tile_gives_the_bits_of_one_that_is_not(paged: Paged) -> None:
    query = torch.randn(ROWS, HEAD_DIM, device=DEVICE)
    last_key = torch.full((ROWS,), LENGTH - 1, dtype=torch.int32, device=DEVICE)
    for got, want in zip(
        split_of(paged, query, last_key, 0, 64, 64), split_of(paged, query, last_key, 0, 0, 64), strict=True
    ):
        assert torch.equal(got, want)


def test_splits_fold_into_the_whole_and_one_without_keys_adds_nothing(paged: Paged) -> None:
    query = torch.randn(ROWS, HEAD_DIM, device=DEVICE)
    last_key = torch.arange(20, 20 + ROWS, dtype=torch.int32, device=DEVICE)
    folded = split_of(paged, query, last_key, 0, 16, 32)
    combine_kernel[(1,)](*folded, *split_of(paged, query, last_key, 32, 32, LENGTH), ROWS=ROWS, HEAD_DIM=HEAD_DIM)
    got = folded[2] / folded[1][:, None]
    torch.testing.assert_close(got, expected(paged, query, last_key).float(), rtol=1e-5, atol=1e-5)
    before = [part.clone() for part in folded]
    unseen = split_of(paged, query, last_key, 64, 64, LENGTH)
    assert unseen[0].eq(-torch.inf).all() and unseen[1].eq(0).all()
    combine_kernel[(1,)](*folded, *unseen, ROWS=ROWS, HEAD_DIM=HEAD_DIM)
    assert all(torch.equal(got, want) for got, want in zip(folded, before, strict=True))
