"""A reader's end of a connection to a block server."""

import socket
import time

from engine.offload.peers.nixl_reader import NixlReader
from engine.offload.peers.wire import (
    ADDRESS,
    AGENT,
    FILE_LENGTH,
    HAS_FAILED,
    HAS_READ,
    LENT,
    NAME_LENGTH,
    greet_server,
    receive,
    send,
)

MOST_METADATA = 1 << 16  # bytes


class Connection:
    """Of one thread at a time."""

    def __init__(self, address: str, secret: bytes, deadline: float, nixl: NixlReader | None) -> None:
        """Each knows after it that the other one has the secret. `deadline`: of time.monotonic.
        Raises OSError.
        """
        host, _, port = address.rpartition(":")
        self._stream = socket.create_connection((host, int(port)), max(deadline - time.monotonic(), 0.001))
        self._nixl = nixl
        self._agent: str | None = None  # the server's
        try:
            self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greet_server(self._stream, secret, deadline)
            if nixl is not None and (metadata := self._answer(AGENT, MOST_METADATA, deadline)):
                self._agent = nixl.meet(bytes(metadata))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Idempotent."""
        self._stream.close()

    def ask(self, name: str, most_bytes: int, deadline: float) -> bytearray | None:
        """The file's bytes; None if it is not there. Closes the connection, and raises OSError,
        unless all of the answer has come.
        """
        try:
            if self._nixl is not None and self._agent is not None:
                return self._ask_lent(name, most_bytes, deadline, self._nixl, self._agent)
            return self._answer(name, most_bytes, deadline)
        except BaseException:
            self.close()
            raise

    def _answer(self, name: str, most_bytes: int, deadline: float) -> bytearray | None:
        num_bytes = self._length(name, most_bytes, deadline)
        return receive(self._stream, num_bytes, deadline) if num_bytes else None

    def _length(self, name: str, most_bytes: int, deadline: float) -> int:
        send(self._stream, NAME_LENGTH.pack(len(name)) + name.encode(), deadline)
        num_bytes: int = FILE_LENGTH.unpack(receive(self._stream, FILE_LENGTH.size, deadline))[0]
        if num_bytes > most_bytes:
            raise ConnectionError(f"it sends {num_bytes} bytes, and a block has {most_bytes}")
        return num_bytes

    def _ask_lent(self, name: str, most_bytes: int, deadline: float, nixl: NixlReader, agent: str) -> bytearray | None:
        """By NIXL, or, where that fails or has no room, over TCP."""
        memory = nixl.take(agent, most_bytes)
        if memory is None:
            return self._answer(name, most_bytes, deadline)
        address = 0
        try:
            num_bytes = self._length(LENT + name, most_bytes, deadline)
            if num_bytes:
                (address,) = ADDRESS.unpack(receive(self._stream, ADDRESS.size, deadline))
        finally:
            if not address:
                nixl.give_back(memory)
        if not address:
            return receive(self._stream, num_bytes, deadline) if num_bytes else None
        found = nixl.read(memory, agent, address, num_bytes, deadline)
        send(self._stream, HAS_READ if found is not None else HAS_FAILED, deadline)
        return self._answer(name, most_bytes, deadline) if found is None else found
