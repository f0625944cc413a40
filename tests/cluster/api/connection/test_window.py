"""An answer on its way from a gateway to the client of a proxy, with queues without limit between,
as Serve has them.
"""

import asyncio
import pickle
from collections import deque
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from cluster.api.connection.disconnect import unless_disconnected
from cluster.api.connection.window import MESSAGE_BYTES, UPDATE_BYTES, WINDOW_BYTES, WindowUpdates, WithinWindow

PART = b"x" * (3 << 10)
COST = len(PART) + MESSAGE_BYTES
NUM_PARTS = 20 * WINDOW_BYTES // COST


class Serve:
    """What is between: both ways messages go through a queue, pickled, and nobody waits."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self.num_under_way = 0  # parts that the gateway has sent, and the proxy has not written
        self.most_under_way = 0
        self.num_client_messages = 0  # that reached the gateway, ours among them
        self.failure: Exception | None = None  # of what comes after the request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        up, down = asyncio.Queue[Message | Exception](), asyncio.Queue[Message | None]()

        async def pull() -> None:
            is_gone = False
            while not is_gone:
                message = await receive()
                is_gone = message["type"] == "http.disconnect"
                self.num_client_messages += 1
                up.put_nowait(message)
                if self.failure is not None:
                    up.put_nowait(self.failure)
                    return

        async def received() -> Message:
            message = await up.get()
            if isinstance(message, Exception):
                raise message
            return message

        async def sent(message: Message) -> None:
            self.num_under_way += message["type"] == "http.response.body"
            self.most_under_way = max(self.most_under_way, self.num_under_way)
            down.put_nowait(message)

        async def run() -> None:
            try:
                await self._gateway(pickle.loads(pickle.dumps(scope)), received, sent)
            finally:
                down.put_nowait(None)

        pulling, running = asyncio.create_task(pull()), asyncio.create_task(run())
        try:
            while (message := await down.get()) is not None:
                await send(message)
                self.num_under_way -= message["type"] == "http.response.body"
            await running
        finally:
            pulling.cancel()
            running.cancel()


class Client:
    """Reads a part whenever it is told to; leaves if it is told so."""

    def __init__(self, body: bytes = b"") -> None:
        self.may_read = asyncio.Semaphore(0)
        self.leaves = asyncio.Event()
        self.read: list[bytes] = []
        self._sends = deque([{"type": "http.request", "body": body, "more_body": False}])

    async def receive(self) -> Message:
        if self._sends:
            return self._sends.popleft()
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            await self.may_read.acquire()
            self.read.append(message["body"])

    def reads(self, num_parts: int) -> None:
        for _ in range(num_parts):
            self.may_read.release()


async def settled() -> None:
    """All that goes on without the client has."""
    for _ in range(20 * NUM_PARTS):
        await asyncio.sleep(0)


async def parts(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that looks whether its client is there while it answers, as those that stream
    do; the first part is what the client sent.
    """
    request = Request(scope, receive)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": await request.body(), "more_body": True})

    async def rest() -> None:
        for _ in range(NUM_PARTS):
            await send({"type": "http.response.body", "body": PART, "more_body": True})
            await asyncio.sleep(0)  # for the next one
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    await unless_disconnected(receive, rest())


async def starlettes(scope: Scope, receive: Receive, send: Send) -> None:
    """The same by starlette's own response."""
    body = await Request(scope, receive).body()

    async def pieces() -> Any:
        yield body
        for _ in range(NUM_PARTS):
            yield PART

    await StreamingResponse(pieces())(scope, receive, send)


async def unwatched(scope: Scope, receive: Receive, send: Send) -> None:
    """One that asks for nothing while it answers."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"asked", "more_body": True})
    for _ in range(NUM_PARTS):
        await send({"type": "http.response.body", "body": PART, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": [], "asgi": {"spec_version": "2.3"}}


@pytest.mark.parametrize("application", [parts, starlettes, unwatched])
async def test_what_a_slow_client_has_not_taken_is_bounded_and_all_of_it_comes(application: Any) -> None:
    client, serve = Client(b"asked"), Serve(WithinWindow(application))
    answering = asyncio.create_task(WindowUpdates(serve)(dict(SCOPE), client.receive, client.send))
    await settled()
    assert serve.num_under_way == pytest.approx(WINDOW_BYTES / COST, abs=2)
    for _ in range(NUM_PARTS + 2):
        client.reads(1)
        await asyncio.sleep(0)
    await answering
    assert client.read == [b"asked", *[PART] * NUM_PARTS, b""]
    assert serve.most_under_way <= WINDOW_BYTES // COST + 3


async def test_it_costs_a_message_now_and_then() -> None:
    client, serve = Client(), Serve(WithinWindow(parts))
    client.reads(NUM_PARTS + 2)
    await WindowUpdates(serve)(dict(SCOPE), client.receive, client.send)
    assert 1 < serve.num_client_messages <= 2 + NUM_PARTS * COST // UPDATE_BYTES


async def test_a_client_that_leaves_ends_its_answer() -> None:
    client, serve = Client(), Serve(WithinWindow(parts))
    answering = asyncio.create_task(WindowUpdates(serve)(dict(SCOPE), client.receive, client.send))
    await settled()
    client.leaves.set()
    await settled()
    client.reads(NUM_PARTS)
    with pytest.raises(ClientDisconnect):
        await answering


@pytest.mark.parametrize("application", [parts, unwatched])
async def test_an_answer_does_not_wait_for_a_proxy_that_tells_nothing_more(application: Any) -> None:
    client, serve = Client(), Serve(WithinWindow(application))
    serve.failure = ConnectionError("the proxy is lost")
    client.reads(NUM_PARTS + 2)
    await WindowUpdates(serve)(dict(SCOPE), client.receive, client.send)
    assert len(client.read) == NUM_PARTS + 2


async def test_without_a_proxy_that_tells_nothing_waits() -> None:
    client, serve = Client(), Serve(WithinWindow(parts))
    answering = asyncio.create_task(serve(dict(SCOPE), client.receive, client.send))
    await settled()
    assert serve.num_under_way == NUM_PARTS + 2
    client.reads(NUM_PARTS + 2)
    await answering
