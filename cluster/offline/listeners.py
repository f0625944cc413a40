"""Threads that wait for an engine's outputs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from engine.outputs import RequestOutput

LOOK_SECONDS = 1.0  # between two looks at whether any will come

NextOutputs = Callable[[], list[RequestOutput]]


class Listeners:
    """Each gets all outputs, of whichever thread's requests."""

    def __init__(self, check: Callable[[], None]) -> None:
        """`check` raises EngineDead if no outputs will come."""
        self._check = check
        self._lock = threading.Lock()
        self._queues: tuple[SimpleQueue[list[RequestOutput]], ...] = ()  # replaced under the lock

    def tell(self, outputs: list[RequestOutput]) -> None:
        """In the engine's thread."""
        for each in self._queues:
            each.put(outputs)

    @contextmanager
    def one(self) -> Iterator[NextOutputs]:
        """What is called for each step's outputs from now on: it waits for them, and raises
        EngineDead.
        """
        mine: SimpleQueue[list[RequestOutput]] = SimpleQueue()
        with self._lock:
            self._queues = (*self._queues, mine)
        try:
            yield lambda: self._next_of(mine)
        finally:
            with self._lock:
                self._queues = tuple(each for each in self._queues if each is not mine)

    def _next_of(self, queue: "SimpleQueue[list[RequestOutput]]") -> list[RequestOutput]:
        while True:
            try:
                return queue.get(timeout=LOOK_SECONDS)
            except Empty:
                self._check()
