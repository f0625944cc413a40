"""The benchmark's clients."""

import socket
import threading

import pytest

from cluster.sockets import LOOPBACK
from tests.benchmarks.gateway.client import Clients

REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}"


def test_a_refusal_ends_it() -> None:
    """A connection that stays open has no more to say."""
    with socket.create_server((LOOPBACK, 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(REFUSAL)
                connection.recv(1)

        refusing = threading.Thread(target=refuse, daemon=True)
        refusing.start()
        clients = Clients(server.getsockname()[1], 1, 4, "/v1/completions")
        with pytest.raises(ConnectionError, match="503 Service Unavailable"):
            clients.read(4)
        for each in (*clients._connections.values(), clients._poll):
            each.close()
