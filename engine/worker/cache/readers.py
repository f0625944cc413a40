"""Threads that read blocks from the folder and from other nodes, of which none has them all."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

NUM_READERS = 8
NUM_OF_ONE = 4  # at the same time, however slow it is: the others are for what is elsewhere


class Readers:
    """What is read from the same place is read in the order in which it was submitted; places take
    turns. From any thread.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="offload reader")
        self._lock = threading.Lock()  # guards the rest
        self._num_running: Counter[str] = Counter()  # by place; those that have a thread, or wait for any
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by place, which has as many as it may

    def submit(self, place: str, read: Callable[[], None]) -> None:
        with self._lock:
            if self._num_running[place] >= NUM_OF_ONE:
                self._waiting.setdefault(place, deque()).append(read)
                return
            self._num_running[place] += 1
        self._threads.submit(self._run, place, read)

    def _run(self, place: str, read: Callable[[], None]) -> None:
        try:
            read()
        finally:
            following = self._following(place)
            if following is not None:  # behind what other places have submitted
                self._threads.submit(self._run, place, following)

    def _following(self, place: str) -> Callable[[], None] | None:
        with self._lock:
            waiting = self._waiting.get(place)
            if waiting:
                following = waiting.popleft()
                if not waiting:
                    del self._waiting[place]
                return following
            self._num_running[place] -= 1
            if not self._num_running[place]:
                del self._num_running[place]
            return None
