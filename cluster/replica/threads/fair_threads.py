"""Threads that divide their time fairly among API keys."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from engine.request import Share

Work = tuple["Future[None]", Callable[[], None], Share]


class FairThreads:
    """The next work is the first of the key that has been given the least time for its weight, as
    in `engine.scheduling.waiting.fair_shares`; what comes without a key counts as one. No key has
    all threads at once.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        """num_threads: at least 2."""
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._lock = threading.Lock()  # of all below
        self._waiting: dict[str | None, deque[Work]] = {}
        self._num_running: Counter[str | None] = Counter()
        self._given: dict[str | None, float] = {}  # weighted seconds, of the keys that wait or run

    def submit(self, share: Share, work: Callable[[], None]) -> "Future[None]":
        future: Future[None] = Future()
        with self._lock:
            if share.key not in self._given:
                self._given[share.key] = min(self._given.values(), default=0.0)
            self._waiting.setdefault(share.key, deque()).append((future, work, share))
        # It may find none to begin: the thread that has this key's goes on with this work then.
        self._threads.submit(self._run)
        return future

    def close(self) -> None:
        """Begin nothing more; what waits is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for works in waiting.values():
            for future, _, _ in works:
                future.cancel()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            future, work, share = taken
            began = time.monotonic()
            if future.set_running_or_notify_cancel():
                try:
                    work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
            self._ran(share, time.monotonic() - began)

    def _take(self) -> Work | None:
        with self._lock:
            ready = [key for key in self._waiting if self._num_running[key] < self._num_threads - 1]
            if not ready:
                return None
            key = min(ready, key=self._given.__getitem__)
            taken = self._waiting[key].popleft()
            if not self._waiting[key]:
                del self._waiting[key]
            self._num_running[key] += 1
            return taken

    def _ran(self, share: Share, seconds: float) -> None:
        key = share.key
        with self._lock:
            self._given[key] += seconds / share.weight
            self._num_running[key] -= 1
            if not self._num_running[key] and key not in self._waiting:
                del self._num_running[key], self._given[key]
