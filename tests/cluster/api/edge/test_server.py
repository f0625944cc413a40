"""A proxy's server that is closed: who is connected gets an answer, and no reset."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
import uvloop
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cluster.api.edge.connection import Connection
from cluster.api.edge.proxied import ProxyEdge
from cluster.api.edge.server import ACCEPTS, ProxyServer, are_servers_closed, close_servers

HEAD = b"POST /%b HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody"
SECONDS = 120.0
MANY = 320  # connections


class Slow:
    """Answers a request for /slow when it is told to, others at once."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await StreamingResponse(self._answer(scope["path"] == "/slow"))(scope, receive, send)

    async def _answer(self, is_slow: bool) -> AsyncIterator[bytes]:
        yield b"begin"
        if is_slow:
            self.has_begun.set()
            await asyncio.to_thread(self.may_end.wait, SECONDS)
        yield b"end"


class LingeringServer(ProxyServer):
    """Lingers until it is told not to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.may_go = threading.Event()

    async def linger(self) -> None:
        await asyncio.to_thread(self.may_go.wait, SECONDS)


class NodeServer(ProxyServer):
    """On a node of several, and in no hurry."""

    address = "127.0.0.9"

    async def linger(self) -> None:
        return


@pytest.fixture
def app() -> Slow:
    return Slow()


@pytest.fixture
def server(app: Slow) -> Iterator[LingeringServer]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = uvicorn.Config(ProxyEdge(app), port=port, http=Connection, lifespan="off", log_level="critical")
    server = LingeringServer(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield server
    app.may_end.set()
    server.may_go.set()
    server.should_exit = True
    thread.join()
    ProxyServer.in_this_process.remove(server)


def bound(address: str) -> socket.socket:
    """As Serve leaves it to the server."""
    listener = socket.socket()
    listener.bind((address, 0))
    return listener


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)


def read(connection: socket.socket, end: bytes) -> bytes:
    """Up to `end`, or to the end of the connection."""
    received = b""
    while not received.endswith(end) and (data := connection.recv(1 << 16)):
        received += data
    return received


async def test_a_server_listens_on_the_nodes_address_alone(app: Slow) -> None:
    listener = bound("0.0.0.0")
    port = listener.getsockname()[1]
    server = NodeServer(uvicorn.Config(app, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0)
    listening = {each.getsockname() for one in server.servers for each in one.sockets}
    server.should_exit = True
    await task
    ProxyServer.in_this_process.remove(server)
    assert listening == {("127.0.0.9", port)}


class Coveted(socket.socket):
    """When it is closed, another process would have its port at once."""

    was_free = False

    def close(self) -> None:
        address = self.getsockname()
        super().close()
        with socket.socket() as other, contextlib.suppress(OSError):
            other.bind(address)
            self.was_free = True


async def test_nobody_can_take_the_port_between_the_two_addresses(app: Slow) -> None:
    listener = Coveted()
    listener.bind(("0.0.0.0", 0))
    server = NodeServer(uvicorn.Config(app, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0)
    server.should_exit = True
    await task
    ProxyServer.in_this_process.remove(server)
    assert not listener.was_free


def test_a_busy_loop_accepts_many_connections_in_a_turn(app: Slow) -> None:
    """uvloop by itself accepts one: what waits then grows with each request that keeps it busy."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=MANY)
    address = listener.getsockname()
    server = NodeServer(uvicorn.Config(app, http=Connection, lifespan="off", log_level="critical"))
    server.address = ""

    async def count_turns() -> int:
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0)
        # They are established by the kernel, while the loop is busy here.
        connections = [connect(address[1]) for _ in range(MANY)]
        num_turns = 0
        while len(server.server_state.connections) < MANY:
            await asyncio.sleep(0)
            num_turns += 1
        for connection in connections:
            connection.close()
        server.should_exit = True
        await task
        ProxyServer.in_this_process.remove(server)
        return num_turns

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(count_turns()) <= MANY // ACCEPTS + 5


def test_a_server_that_is_closed_answers_who_is_connected(app: Slow, server: LingeringServer) -> None:
    port = server.config.port
    with connect(port) as slow, connect(port) as used, connect(port) as fresh, connect(port) as idle:
        slow.sendall(HEAD % b"slow")
        for connection in (used, idle):
            connection.sendall(HEAD % b"quick")
            assert read(connection, b"0\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert app.has_begun.wait(SECONDS)
        close_servers(None)
        with pytest.raises(ConnectionRefusedError):
            while True:
                connect(port).close()
        for connection in (used, fresh):
            connection.sendall(HEAD % b"quick")
            answer = read(connection, b"never").lower()
            assert answer.startswith(b"http/1.1 503") and b'"shutting_down"' in answer
            assert b"\r\nconnection: close\r\n" in answer and b"\r\nretry-after: 10\r\n" in answer
        server.may_go.set()
        assert idle.recv(1) == b""
        assert not are_servers_closed(None)
        app.may_end.set()
        assert read(slow, b"0\r\n\r\n").endswith(b"end\r\n0\r\n\r\n")
        assert slow.recv(1) == b""
