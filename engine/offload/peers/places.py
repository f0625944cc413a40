"""How many connections a block server has, and who must leave if there are too many."""

import logging
import socket
import threading
from collections import Counter
from contextlib import suppress

MAX_UNPROVEN = 128  # of connections that have not proved yet that they know the secret: ranks may come all at once
MAX_PROVEN = 512  # of those that have
MAX_OF_HOST = 128  # of these from one address: ranks of a node have NUM_OF_ONE each (`engine.worker.cache.readers`)

logger = logging.getLogger("squadron.offload")


class Places:
    """Of the connections of one server. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unproven: dict[socket.socket, str] = {}  # the oldest first, with whom they are of
        self._proven: dict[socket.socket, str] = {}
        self._is_closed = self._has_told = False

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
        """It knows the secret; whether there is a place for it. The first one that finds none is
        logged.
        """
        with self._lock:
            host = self._unproven.pop(stream, None)
            if host is None:
                return False
            lack = self._lack(host)
            if lack is None:
                self._proven[stream] = host
                return True
            if not self._has_told:
                logger.warning("%s gets no further connection for blocks: %s (others are not logged)", host, lack)
            self._has_told = True
            return False

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

    def _lack(self, host: str) -> str | None:
        """Why no further one of the address has a place, if so."""
        num_of_host = sum(whose == host for whose in self._proven.values())
        if len(self._proven) >= MAX_PROVEN:
            return f"all addresses have {len(self._proven)} of {MAX_PROVEN}"
        return f"it has {num_of_host} of {MAX_OF_HOST}" if num_of_host >= MAX_OF_HOST else None


def _end(stream: socket.socket) -> None:
    with suppress(OSError):  # which wakes its thread
        stream.shutdown(socket.SHUT_RDWR)
