"""When a connection lets an answer write to it, with sockets."""

import asyncio
import socket
import threading
from typing import Any

from cluster.api.connection.body_writer import Write, offered
from cluster.api.edge.writable import WritableConnection
from tests.cluster.api.scripted import listening

SECONDS = 120  # more than anything here takes
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": []}


def write_of(scope: dict[str, Any]) -> Write:
    write = offered(scope)
    assert write is not None
    return write


def test_writes_while_the_answer_is_open() -> None:
    written: list[bool] = []
    kept: list[Write] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        write = write_of(scope)
        written.extend(earlier(b"of another answer") for earlier in kept)
        written.append(write(b"too early"))
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        written.append(write(b"two"))
        await send({"type": "http.response.body", "body": b"three"})
        written.append(write(b"too late"))
        kept.append(write)

    with listening(app, http=WritableConnection) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(SECONDS)
        for _ in range(2):
            connection.sendall(REQUEST)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += connection.recv(1 << 16)
            assert received.split(b"\r\n\r\n", 1)[1] == b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
    assert written == [False, True, False, False, False, True, False]


def test_writes_nothing_to_a_client_that_has_gone() -> None:
    written: list[bool] = []
    has_begun, has_ended = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        has_begun.set()
        async with asyncio.timeout(SECONDS):
            while (await receive())["type"] != "http.disconnect":
                pass
        written.append(write_of(scope)(b"late"))
        has_ended.set()

    with listening(app, http=WritableConnection) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(REQUEST)
            assert has_begun.wait(SECONDS)
        assert has_ended.wait(SECONDS)
    assert written == [False]
