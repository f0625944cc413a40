"""The proxy's middleware before a proxy that loses gateways: it returns without an answer then, as
Serve's does.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from cluster.api.edge.lost_gateway import MAX_KEPT_BYTES, MAX_TRIES, TAKEN, LostGateways, TellTaken
from tests.cluster.api.scripted import listening

SECONDS = 120.0


class Proxy:
    """Answers with the request's body, after so many gateways were lost, which had `taken` the
    request or were dead before; writes into the scope, as Serve's proxy does.
    """

    def __init__(self, num_lost: int, *, reads: bool = True, taken: bool = True) -> None:
        self.num_lost = num_lost
        self.reads = reads
        self.taken = taken
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        scope["path"] = "/elsewhere"
        body = b""
        if self.reads or len(self.paths) > self.num_lost:
            try:
                body = await Request(scope, receive).body()
            except ClientDisconnect:
                return
        if len(self.paths) > self.num_lost:
            await Response(body)(scope, receive, send)
        else:
            await self.lose(send)

    async def lose(self, send: Send) -> None:
        if self.taken:
            await send({"type": TAKEN, "patience": SECONDS})


@contextmanager
def client_of(proxy: Proxy) -> Iterator[httpx.Client]:
    with listening(LostGateways(proxy)) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client


@pytest.mark.parametrize("reads", [True, False], ids=["after its body was read", "before"])
@pytest.mark.parametrize("num_lost", range(MAX_TRIES))
def test_a_lost_gateways_request_is_asked_again(num_lost: int, reads: bool) -> None:
    proxy = Proxy(num_lost, reads=reads)
    with client_of(proxy) as client:
        response = client.post("/v1", content=(part for part in (b"one ", b"two")))
    assert (response.status_code, response.text) == (200, "one two")
    assert proxy.paths == ["/v1"] * (num_lost + 1)


def test_after_some_attempts_the_client_is_told_to_come_back() -> None:
    proxy = Proxy(MAX_TRIES)
    with client_of(proxy) as client:
        response = client.post("/v1", content=b"one")
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (503, "server_error", "gateway_lost")
    assert response.headers["retry-after"] == "1"
    assert len(proxy.paths) == MAX_TRIES


def test_gateways_that_were_dead_before_do_not_count() -> None:
    proxy = Proxy(MAX_TRIES + 1, taken=False)
    with client_of(proxy) as client:
        assert client.post("/v1", content=b"one").text == "one"
    assert len(proxy.paths) == MAX_TRIES + 2


def test_openais_client_sends_it_again() -> None:
    """It waits for as long as it is told."""

    class Models(Proxy):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.paths.append(scope["path"])
            if len(self.paths) > self.num_lost:
                await Response(b'{"object": "list", "data": []}', media_type="application/json")(scope, receive, send)
            else:
                await self.lose(send)

    proxy = Models(MAX_TRIES)
    with (
        listening(LostGateways(proxy)) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=1) as client,
    ):
        assert client.models.list().data == []
    assert len(proxy.paths) == MAX_TRIES + 1


def test_a_body_too_long_to_keep_is_not_sent_again() -> None:
    proxy = Proxy(1)
    with client_of(proxy) as client:
        response = client.post("/v1", content=b"x" * (MAX_KEPT_BYTES + 1))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "gateway_lost")
        assert len(proxy.paths) == 1
        assert len(client.post("/v1", content=b"x" * (MAX_KEPT_BYTES + 1)).content) == MAX_KEPT_BYTES + 1


class Waiting(Proxy):
    """Waits for a gateway until the client has gone, as Serve's proxy does; when `may_take` is set,
    one takes the request, and answers once `may_answer` is.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.may_take, self.may_answer = threading.Event(), threading.Event()
        self.were_given_up: list[bool] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert TAKEN in scope["extensions"]
        assert (await receive())["body"] == b"one"
        gone = asyncio.create_task(self._gone(receive))
        taken = asyncio.create_task(asyncio.to_thread(self.may_take.wait, SECONDS))
        await asyncio.wait([gone, taken], return_when=asyncio.FIRST_COMPLETED)
        self.were_given_up.append(gone.done())
        if not gone.done():
            await TellTaken(self._answer, patience=0.01)(scope, receive, send)
        gone.cancel()
        self.may_take.set()

    async def _gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(self.may_answer.wait, SECONDS)
        await Response(b"answer")(scope, receive, send)


def test_a_request_that_no_gateway_takes_ends_with_their_patience() -> None:
    """Which the first that takes one tells; a request that was taken is not bounded here."""
    proxy = Waiting()
    with client_of(proxy) as client:
        proxy.may_take.set()
        threading.Timer(0.1, proxy.may_answer.set).start()
        assert client.post("/v1", content=b"one").text == "answer"
        proxy.may_take.clear()
        response = client.post("/v1", content=b"one")
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["code"]) == (503, "server_error", "not_ready")
        assert error["message"].startswith("No gateway took the request within 0.01 s")
        assert response.headers["retry-after"] == "1"
    assert proxy.were_given_up == [False, True]


async def test_nobody_is_asked_for_a_client_that_has_gone() -> None:
    proxy = Proxy(MAX_TRIES)

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        raise AssertionError(message)

    await LostGateways(proxy)({"type": "http", "method": "POST", "path": "/v1", "headers": []}, receive, send)
    assert len(proxy.paths) == 1


async def test_a_part_that_comes_as_its_gateway_is_lost_is_for_the_next_one() -> None:
    """Serve's proxy ends its reading then, perhaps in the moment in which a part is there."""
    parts = [b"one ", b"two"]
    sent: list[Message] = []

    async def receive() -> Message:
        body = parts.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(parts)}

    async def send(message: Message) -> None:
        sent.append(message)

    class Losing(Proxy):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.reads = len(self.paths) > 0
            if not self.reads:
                reading = asyncio.create_task(receive())
                while len(parts) == 2:
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                assert reading.cancelled()
            await super().__call__(scope, receive, send)

    await LostGateways(Losing(1))({"type": "http", "method": "POST", "path": "/v1", "headers": []}, receive, send)
    assert [message["body"] for message in sent if "body" in message] == [b"one two"]
