"""Connects workers to their driver: the driver listens, the worker connects and sends the token it
was given.

Addresses are `unix:PATH` (workers on the driver's node) or `tcp:HOST:PORT`. Accept order is not
rank order: the name after the token identifies the rank.
"""

import hmac
import secrets
import shutil
import socket
import tempfile
import time

from cluster.sockets import MAX_FRAME_BYTES, TOKEN_BYTES
from cluster.sockets.connection import ChannelError, Connection

MAX_NAME_BYTES = 64
_HELLO_SECONDS = 1.0  # for a connection to send its token; meanwhile the others wait


class Listener:
    """The driver's end before its workers have connected; they need `address` and `token`."""

    def __init__(self, host: str | None) -> None:
        """Listen on a free port of `host`, or if it is None on a Unix socket that only this user
        can reach.
        """
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._folder: str | None = None
        if host is None:
            self._folder = tempfile.mkdtemp(prefix="squadron-")
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(f"{self._folder}/steps")
            self.address = f"unix:{self._folder}/steps"
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, 0), family=family)
            self.address = f"tcp:{host}:{self._socket.getsockname()[1]}"
        self._socket.listen(socket.SOMAXCONN)

    def accept(self, deadline: float) -> tuple[str, Connection]:
        """The next connection that sends the token, and its name; raises TimeoutError at `deadline`
        (time.monotonic).
        """
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            stream, _ = self._socket.accept()
            connection = Connection(stream)
            name = self._greet(connection)
            if name is not None:
                return name, connection
            connection.close()

    def close(self) -> None:
        """Accept no more connections; accepted ones stay open."""
        self._socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _greet(self, connection: Connection) -> str | None:
        """The name sent with the right token; None for anything else, or nothing in time. Data
        right after it is dropped: a line's messages are repeated anyway.
        """
        connection.set_limit(TOKEN_BYTES + MAX_NAME_BYTES, _HELLO_SECONDS)
        try:
            frames = connection.receive()
            frames = frames or connection.receive()
        except ChannelError:
            return None
        if not frames or not hmac.compare_digest(bytes(frames[0][:TOKEN_BYTES]), self.token):
            return None
        connection.set_limit(MAX_FRAME_BYTES, None)
        return frames[0][TOKEN_BYTES:].decode(errors="replace")


def connect(address: str, token: bytes, name: str) -> Connection:
    """Connect to a Listener and send token and name; raises OSError, ValueError for an address of
    another kind.
    """
    kind, _, rest = address.partition(":")
    if kind == "unix":
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(rest)
    elif kind == "tcp":
        host, _, port = rest.rpartition(":")
        stream = socket.create_connection((host, int(port)))
    else:
        raise ValueError(f"address {address!r} begins with neither unix: nor tcp:")
    connection = Connection(stream)
    connection.send(token + name.encode())
    return connection
