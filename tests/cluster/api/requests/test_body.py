"""How large, how slow and how many the bodies of requests may be; with a server, and the
application itself.
"""

import asyncio
import json
import select
import socket
import time
from contextlib import suppress

import httpx
import pytest
from starlette.types import ASGIApp, Message

from cluster.api.app import build
from cluster.api.models.model import Model, Models
from cluster.api.requests.body import Bodies
from cluster.api.requests.parse import SMALL_BODY
from tests.cluster.api.requests.test_read import Defaults
from tests.cluster.api.scripted import MODEL, Running, ScriptedService, running

ROUTE = "/v1/completions"
GOOD = {"model": MODEL, "prompt": "x"}
JSON = {"content-type": "application/json"}
LARGE = json.dumps(GOOD | {"prompt": "x" * SMALL_BODY}).encode()


@pytest.mark.parametrize("is_chunked", [True, False])
def test_too_large(is_chunked: bool) -> None:
    body = json.dumps(GOOD | {"prompt": "a" * 2000}).encode()
    with running(bodies=Bodies(max_bytes=1000)) as server, httpx.Client(base_url=server.url) as http:
        for _ in range(2):  # the connection can be used again
            content = iter([body[:500], body[500:]]) if is_chunked else body
            response = http.post(ROUTE, content=content, headers=JSON)
            assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        small = json.dumps(GOOD).encode()
        assert http.post(ROUTE, content=iter([small]) if is_chunked else small, headers=JSON).status_code == 200


def test_default_limit_is_32_mib(server: Running, http: httpx.Client) -> None:
    empty = json.dumps(GOOD | {"user": ""}).encode()
    whole = (32 << 20) - len(empty)
    for excess, status in ((0, 200), (1, 413)):
        body = json.dumps(GOOD | {"user": "x" * (whole + excess)}).encode()
        assert http.post(ROUTE, content=body, headers=JSON).status_code == status


@pytest.mark.parametrize("num_zeros", [1, 5000])
def test_a_length_may_begin_with_zeros(server: Running, num_zeros: int) -> None:
    body = json.dumps(GOOD).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(head + b"content-length: %b%d\r\n\r\n" % (b"0" * num_zeros, len(body)) + body)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("trickles", [False, True])
@pytest.mark.parametrize(
    ("framing", "more"),
    [(b"content-length: 100000\r\n\r\n{", b" "), (b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", b"1\r\n \r\n")],
)
def test_slow_body(framing: bytes, more: bytes, trickles: bool) -> None:
    """Also one of which a byte comes again and again: the limit is for the whole."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with (
        running(bodies=Bodies(seconds=0.5 if trickles else 0.05)) as server,
        socket.create_connection(("127.0.0.1", server.port), 10) as connection,
    ):
        connection.sendall(head + framing)
        received = b""
        with suppress(ConnectionError):  # it ends with a byte that nobody has read
            while trickles and not select.select([connection], [], [], 0.02)[0]:
                connection.sendall(more)
            while data := connection.recv(1 << 16):  # until the server closes
                received += data
    assert received.startswith(b"HTTP/1.1 408 ")
    assert json.loads(received.split(b"\r\n\r\n")[1])["error"]["code"] == "request_timeout"


def test_large_bodies_take_so_much_memory_and_no_more() -> None:
    """Those that have not arrived yet included; small ones are none of them."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with (
        running(bodies=Bodies(max_held_bytes=3 * len(LARGE))) as server,
        httpx.Client(base_url=server.url, timeout=60, headers=JSON) as http,
    ):
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(head + b"content-length: %d\r\n\r\n" % (4 * len(LARGE)) + b" " * (2 * len(LARGE) + 10))
            while (refused := http.post(ROUTE, content=LARGE)).status_code == 200:
                pass  # it has not come yet
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
            assert 1 <= int(refused.headers["retry-after"]) <= 4
            assert http.post(ROUTE, json=GOOD).status_code == 200
        deadline = time.monotonic() + 60
        while (taken := http.post(ROUTE, content=LARGE)).status_code != 200:  # it has not gone yet
            assert time.monotonic() < deadline, taken.text


async def test_a_large_body_whose_client_has_gone_is_not_read() -> None:
    defaults = Defaults()
    model = Model(name=MODEL, max_model_len=64, vocab_size=1000, default_sampling=defaults)
    service = ScriptedService()
    app = build(service, Models.one(service, model), bodies=Bodies(max_held_bytes=2 * len(LARGE)))
    stays = asyncio.create_task(post(app, goes=False))
    assert await asyncio.to_thread(defaults.asked.wait, 60)
    assert [await post(app, goes=True) for _ in range(3)] == [400, 400, 400]  # each has left its room to the next one
    defaults.may_go_on.set()
    assert await stays == 200
    assert await post(app, goes=False) == 200
    assert len(defaults.threads) == 2


async def post(app: ASGIApp, *, goes: bool) -> int:
    """The status that the application answers a large body with, whose client `goes` away at
    once.
    """
    received: list[Message] = [{"type": "http.request", "body": LARGE, "more_body": False}]
    statuses: list[int] = []

    async def receive() -> Message:
        if not received and not goes:
            await asyncio.Event().wait()
        return received.pop() if received else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": ROUTE, "headers": headers, "query_string": b"", "root_path": ""}
    await app(scope, receive, send)
    return statuses[0]
