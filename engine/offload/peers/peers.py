"""Reads files of blocks from engines on other nodes. One that fails or is late is left alone for a
while, so that what it has is computed at once.
"""

import threading
import time

from engine.offload.peers.connection import Connection
from engine.offload.peers.nixl_reader import nixl_reader

SECONDS = 2.0  # for a file, connecting included
AVOID_SECONDS = 10.0
MAX_IDLE = 64  # connections that are kept for the next file


class Peers:
    """One rank's connections to them: as many as threads read at the same time, and MAX_IDLE kept.
    From any thread.
    """

    def __init__(self, secret: str, *, uses_nixl: bool = False) -> None:
        self._secret = secret.encode()
        self._nixl = nixl_reader() if uses_nixl else None
        self._lock = threading.Lock()  # guards the rest
        self._idle: list[tuple[str, Connection]] = []  # address and connection, the last used behind
        self._avoided: dict[str, float] = {}  # until when, in time.monotonic()

    def fetch(self, address: str, name: str, most_bytes: int) -> bytearray | None:
        """The file's bytes, which may be damaged; None if it is not there, or nobody is asked for
        now. Raises OSError where the other end does not answer as it should, and in time.
        """
        deadline = time.monotonic() + SECONDS
        if self._is_avoided(address):
            return None
        try:
            connection, found = self._asked(address, name, most_bytes, deadline)
        except OSError:
            self._avoid(address)
            raise
        self._keep(address, connection)
        return found

    def close(self) -> None:
        """What is being read goes on. Idempotent."""
        with self._lock:
            for _, connection in self._idle:
                connection.close()
            self._idle.clear()

    def __del__(self) -> None:
        self.close()

    def _asked(self, address: str, name: str, most_bytes: int, deadline: float) -> tuple[Connection, bytearray | None]:
        """On a connection that was kept, or, if the other end has closed it meanwhile, a new
        one.
        """
        kept = self._take(address)
        if kept is not None:
            try:
                return kept, kept.ask(name, most_bytes, deadline)
            except ConnectionError:
                pass
        connection = Connection(address, self._secret, deadline, self._nixl)
        return connection, connection.ask(name, most_bytes, deadline)

    def _take(self, address: str) -> Connection | None:
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index][0] == address:
                    return self._idle.pop(index)[1]
        return None

    def _keep(self, address: str, connection: Connection) -> None:
        with self._lock:
            self._idle.append((address, connection))
            if len(self._idle) > MAX_IDLE:
                self._idle.pop(0)[1].close()

    def _is_avoided(self, address: str) -> bool:
        with self._lock:
            return self._avoided.get(address, 0.0) > time.monotonic()

    def _avoid(self, address: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._avoided = {each: until for each, until in self._avoided.items() if until > now}
            self._avoided[address] = now + AVOID_SECONDS
            for each, connection in self._idle:
                if each == address:
                    connection.close()
            self._idle = [(each, connection) for each, connection in self._idle if each != address]
