"""Pieces are aligned, apart from each other, and of memory that goes with the last of them."""

import mmap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from torch import Tensor

from ops.cpu.arena import _CHUNK_BYTES, Arena

SIZES = [1, 63, 64, 65, 4096, 1_000_003, 0, 7]


def spans(pieces: list[Tensor]) -> list[tuple[int, int]]:
    return sorted((piece.data_ptr(), piece.data_ptr() + piece.numel()) for piece in pieces if piece.numel())


def test_pieces_are_aligned_and_do_not_overlap() -> None:
    arena = Arena()
    pieces = [arena.take(size) for size in SIZES * 10]
    assert [piece.numel() for piece in pieces] == SIZES * 10
    assert all(piece.data_ptr() % 64 == 0 for piece in pieces)
    places = spans(pieces)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    for number, piece in enumerate(pieces):
        piece.fill_(number % 251)
    assert all(bool(piece.eq(number % 251).all()) for number, piece in enumerate(pieces))


def test_a_piece_larger_than_a_chunk_has_a_chunk_of_its_own() -> None:
    arena = Arena()
    small, large = arena.take(100), arena.take(_CHUNK_BYTES + 1)
    large[-1] = 3
    assert large.data_ptr() % (2 << 20) == 0  # begins at a huge page
    assert small.data_ptr() not in range(large.data_ptr(), large.data_ptr() + large.numel())


def test_only_the_last_piece_can_be_given_back() -> None:
    arena = Arena()
    first, last = arena.take(100), arena.take(200)
    arena.give_back(first)
    assert arena.take(50).data_ptr() > last.data_ptr()
    again = arena.take(300)
    arena.give_back(again)
    assert arena.take(300).data_ptr() == again.data_ptr()


def test_threads_take_pieces_of_their_own() -> None:
    arena = Arena()
    with ThreadPoolExecutor(4) as pool:
        pieces = [
            piece for taken in pool.map(lambda _: [arena.take(130) for _ in range(500)], range(4)) for piece in taken
        ]
    places = spans(pieces)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))


def test_a_system_without_huge_pages_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # which no system knows
    assert Arena().take(100).numel() == 100
