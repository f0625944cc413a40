"""Spares are started after growing delays; losses before a start share it."""

import contextlib
import threading
from collections.abc import Callable

import pytest

from cluster.workers import restocking
from cluster.workers.restocking import Restocking

SECONDS = 120


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restocking, "RESTOCK_SECONDS", 0.01)
    monkeypatch.setattr(restocking, "MAX_RESTOCK_SECONDS", 100.0)


def counted() -> tuple[Callable[[], None], threading.Semaphore]:
    calls = threading.Semaphore(0)
    return calls.release, calls


def test_each_loss_waits_for_longer_until_a_restart_succeeds() -> None:
    stock, calls = counted()
    stocking = Restocking(stock, contextlib.nullcontext())
    for seconds in (0.02, 0.04, 0.08):
        stocking.after_loss()
        assert calls.acquire(timeout=SECONDS)
        assert stocking._seconds == seconds
    stocking.now()
    assert calls.acquire(blocking=False)
    assert stocking._seconds == 0.01


def test_losses_while_one_is_due_share_its_delay() -> None:
    lock = threading.Lock()
    stock, calls = counted()
    stocking = Restocking(stock, lock)
    with lock:
        for _ in range(3):
            stocking.after_loss()
        assert stocking._seconds == 0.02
    assert calls.acquire(timeout=SECONDS)
    stocking.cancel()
    assert not calls.acquire(blocking=False)


def test_a_loss_long_after_the_last_one_is_the_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restocking, "MAX_RESTOCK_SECONDS", 0.0)
    stock, calls = counted()
    stocking = Restocking(stock, contextlib.nullcontext())
    stocking._seconds = 50.0
    stocking.after_loss()
    assert calls.acquire(timeout=SECONDS), "after 0.01 s"


@pytest.mark.parametrize("call", ["after_loss", "now"])
def test_a_start_that_fails_is_tried_again(call: str, caplog: pytest.LogCaptureFixture) -> None:
    failures, started = [RuntimeError("can't start new thread")] * 3, threading.Event()

    def stock() -> None:
        if failures:
            raise failures.pop()
        started.set()

    stocking = Restocking(stock, contextlib.nullcontext())
    getattr(stocking, call)()
    assert started.wait(SECONDS)
    assert caplog.text.count("RuntimeError: can't start new thread") == 3


def test_nothing_is_started_once_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restocking, "STOCK_SECONDS", 3600.0)
    stock, calls = counted()
    stocking = Restocking(stock, contextlib.nullcontext())
    stocking.after_start()
    stocking.cancel()
    assert stocking._timer is not None
    stocking._timer.join(SECONDS)
    assert not stocking._timer.is_alive() and not calls.acquire(blocking=False)
