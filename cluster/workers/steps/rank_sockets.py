"""The driver's sockets to all ranks, which one thread reads while any thread posts."""

import contextlib
import select
import socket
from collections.abc import Iterator

from cluster.sockets.connection import Connection, ConnectionEnded


class RankSockets:
    """`connections` in order of rank. `read` and `drop` are for one thread at a time."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections
        self._poll = select.epoll()
        self._wake_reader, self._woken = socket.socketpair()
        self._poll.register(self._woken, select.EPOLLIN)
        self._open = {connection.fileno(): rank for rank, connection in enumerate(connections)}
        for descriptor in self._open:
            self._poll.register(descriptor, select.EPOLLIN)

    @property
    def are_open(self) -> bool:
        """Whether a rank has not been dropped yet."""
        return bool(self._open)

    def post(self, frame: bytes, num_last: int | None = None) -> None:
        """Send a frame to every rank, or the last so many, without blocking; the reader sends what
        a socket does not take now, and notices its end.
        """
        has_more = False
        for connection in self._connections[-num_last:] if num_last else self._connections:
            with contextlib.suppress(ConnectionEnded):
                has_more |= connection.post(frame)
        if has_more:
            self.wake()

    def wake(self) -> None:
        """Have a `read` that waits return."""
        self._wake_reader.send(b"\0")

    def read(self, seconds: float) -> Iterator[tuple[int, list[bytearray] | Exception]]:
        """Wait at most so long, and send what sockets did not take at once. Each rank that has
        frames and these; or the error for which it is to be dropped.
        """
        for descriptor, events in self._poll.poll(seconds):
            rank = self._open.get(descriptor)
            if rank is None:
                self._woken.recv(64)
                for each in self._open:  # flush it once the socket takes more
                    self._poll.modify(each, select.EPOLLIN | select.EPOLLOUT)
                continue
            connection = self._connections[rank]
            try:
                if events & select.EPOLLOUT and not connection.flush():
                    self._poll.modify(connection, select.EPOLLIN)
                if events & ~select.EPOLLOUT:
                    yield rank, connection.receive()
            except Exception as error:  # of any kind: steps must not wait forever for the reader
                yield rank, error

    def drop(self, rank: int) -> None:
        """Close a rank's connection; idempotent."""
        connection = self._connections[rank]
        descriptor = connection.fileno()
        if self._open.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
            connection.close()

    def end(self) -> None:
        """End every connection, which makes its worker leave its loop; the reader gets to know."""
        for connection in self._connections:
            connection.end()

    def close(self) -> None:
        """Once every rank is dropped and no thread reads."""
        self._poll.close()
        self._wake_reader.close()
        self._woken.close()
