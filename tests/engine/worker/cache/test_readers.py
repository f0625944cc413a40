"""No place has all threads, and each is read in its order."""

import threading
from functools import partial

import pytest

from engine.worker.cache import readers
from engine.worker.cache.readers import NUM_OF_ONE, Readers

TIMEOUT = 20.0


def test_a_place_that_hangs_does_not_hold_up_others() -> None:
    own, may_end, num_hanging = Readers(), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        num_hanging.release()
        may_end.wait(TIMEOUT)

    for _ in range(100):
        own.submit("slow", hang)
    try:
        for _ in range(NUM_OF_ONE):
            assert num_hanging.acquire(timeout=TIMEOUT), "it has as many threads as it may"
        for place in ("", "other"):
            ends = [threading.Event() for _ in range(50)]
            for end in ends:
                own.submit(place, end.set)
            assert all(end.wait(TIMEOUT) for end in ends)
        assert not num_hanging.acquire(blocking=False)
    finally:
        may_end.set()
    for _ in range(100 - NUM_OF_ONE):
        assert num_hanging.acquire(timeout=TIMEOUT), "and is read to its end"


def test_places_take_turns_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "NUM_READERS", 1)
    monkeypatch.setattr(readers, "NUM_OF_ONE", 1)
    own, may_begin, is_done = Readers(), threading.Event(), threading.Event()
    read: list[str] = []
    own.submit("a", lambda: may_begin.wait(TIMEOUT) and None)
    for place in ("a", "b"):
        for number in range(3):
            own.submit(place, partial(read.append, f"{place}{number}"))
    own.submit("b", is_done.set)
    may_begin.set()
    assert is_done.wait(TIMEOUT)
    assert read == ["b0", "a0", "b1", "a1", "b2", "a2"]


def test_one_that_fails_gives_its_thread_back() -> None:
    own, is_done = Readers(), threading.Event()

    def fail() -> None:
        raise OSError("as a filesystem may")

    for _ in range(50):
        own.submit("one", fail)
    own.submit("one", is_done.set)
    assert is_done.wait(TIMEOUT)
