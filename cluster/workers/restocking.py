"""Schedules the start of missing spares: some time after the engine's start, and after a loss."""

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

logger = logging.getLogger("squadron.executor")

STOCK_SECONDS = 10.0  # after the start: by importing torch, spares would delay the first answer
RESTOCK_SECONDS = 0.5  # after the loss of a spare; doubled at each consecutive loss, which may have a lasting cause
MAX_RESTOCK_SECONDS = 300.0  # losses further apart are not consecutive


class Restocking:
    """Calls `stock`, holding a lock, in a thread of its own unless said otherwise."""

    def __init__(self, stock: Callable[[], None], lock: AbstractContextManager[Any]) -> None:
        self._stock = stock
        self._lock = lock
        self._timer: threading.Timer | None = None
        self._is_due = False
        self._lost_at = -math.inf
        self._seconds = RESTOCK_SECONDS

    def after_start(self) -> None:
        self._call_in(STOCK_SECONDS)

    def after_loss(self) -> None:
        """A spare was lost: start another after a delay, along with any lost meanwhile."""
        before, self._lost_at = self._lost_at, time.monotonic()
        if self._is_due:
            return
        if self._lost_at - before > MAX_RESTOCK_SECONDS:
            self._seconds = RESTOCK_SECONDS
        self._call_in(self._seconds)
        self._seconds = min(2 * self._seconds, MAX_RESTOCK_SECONDS)

    def now(self) -> None:
        """In this thread: a restart has succeeded, and the next loss counts as the first."""
        self._seconds = RESTOCK_SECONDS
        self._run()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _call_in(self, seconds: float) -> None:
        self._is_due = True
        self._timer = threading.Timer(seconds, self._run)
        self._timer.daemon = True
        self._timer.start()

    def _run(self) -> None:
        """What fails is tried again, as if a spare had been lost: neither a restart nor the engine
        depends on it.
        """
        with self._lock:
            self._is_due = False
            try:
                self._stock()
                return
            except Exception:
                logger.exception("spares could not be started; trying again")
        self.after_loss()
