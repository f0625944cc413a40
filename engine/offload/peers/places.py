"""How many connections a block server has, and who must leave if there are too many."""

import socket
import threading
from collections import Counter
from contextlib import suppress

MAX_UNPROVEN = 128  # of connections that have not proved yet that they know the secret: ranks may come all at once
MAX_PROVEN = 512  # of those that have
MAX_OF_HOST = 128  # of these from one address: ranks of a node have NUM_OF_ONE each (`engine.worker.cache.readers`)


class Places:
    """Of the connections of one server. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unproven: dict[socket.socket, str] = {}  # the oldest first, with whom they are of
        self._proven: dict[socket.socket, str] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._unproven) + len(self._proven)

    def enter(self, stream: socket.socket, host: str) -> bool:
        """Whether it may try to prove itself. Where others do so already, the oldest of those of
        the address that has the most gives way: who fills all places has no others shut out.
        """
        with self._lock:
            if self._is_closed:
                return False
            self._unproven[stream] = host
            if len(self._unproven) > MAX_UNPROVEN:
                counts = Counter(self._unproven.values())
                most = max(counts.values())
                oldest = next(each for each, whose in self._unproven.items() if counts[whose] == most)
                del self._unproven[oldest]
                _end(oldest)
            return True

    def prove(self, stream: socket.socket) -> bool:
        """It knows the secret; whether there is a place for it."""
        with self._lock:
            host = self._unproven.pop(stream, None)
            if host is None or len(self._proven) >= MAX_PROVEN:
                return False
            if sum(whose == host for whose in self._proven.values()) >= MAX_OF_HOST:
                return False
            self._proven[stream] = host
            return True

    def leave(self, stream: socket.socket) -> None:
        """Its end was reached, before it is closed. Idempotent."""
        with self._lock:
            self._unproven.pop(stream, None)
            self._proven.pop(stream, None)

    def close(self) -> None:
        """End all, and let nobody enter any more. Idempotent."""
        with self._lock:
            self._is_closed = True
            for stream in (*self._unproven, *self._proven):
                _end(stream)


def _end(stream: socket.socket) -> None:
    with suppress(OSError):  # which wakes its thread
        stream.shutdown(socket.SHUT_RDWR)
