"""Clients that do not read their answers, or slowly, with sockets."""

import json
import socket
import time

from cluster.api.edge.unread import UnreadLimit
from tests.cluster.api.edge.test_connection import HEAD, WAIT, read_to_the_end
from tests.cluster.api.scripted import MODEL, Running, Script, running


class Impatient(UnreadLimit):
    unread_seconds = 0.5


def ask_for_much(server: Running, num_texts: int, num_bytes: int = 100_000, room: int = 4096) -> socket.socket:
    """A stream of so many texts, from a client that has little room for it."""
    server.service.scripts["much"] = Script(["x" * num_bytes] * num_texts)
    body = json.dumps({"model": MODEL, "prompt": "much", "stream": True}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    connection.settimeout(WAIT)
    connection.connect(("127.0.0.1", server.port))
    head = HEAD + b"content-length: %d\r\n\r\n" % len(body)
    connection.sendall(head + body)
    return connection


def test_an_answer_that_is_not_read_is_ended() -> None:
    with running(http=Impatient) as server, ask_for_much(server, 200) as connection:
        assert server.service.scripts["much"].closed.wait(WAIT)
        received = read_to_the_end(connection)
    assert received.startswith(b"HTTP/1.1 200 ") and b"[DONE]" not in received


def test_an_answer_that_is_read_slowly_comes_whole() -> None:
    """Much at once, as of a request that does not stream, takes many times the limit to be read."""
    with running(http=Impatient) as server, ask_for_much(server, 1, num_bytes=8_000_000, room=1 << 16) as connection:
        num_bytes, last = 0, b""
        while b"[DONE]" not in last:
            data = connection.recv(1 << 17)
            num_bytes, last = num_bytes + len(data), (last + data)[-100:]
            time.sleep(0.02)
    assert num_bytes > 8_000_000
