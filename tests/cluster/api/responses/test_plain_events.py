"""Events that are written without waking the stream's task: the bytes are those that it would have
sent, and a client that reads slowly gets no more of them than others.
"""

import asyncio
import json
import re
import socket
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import ClassVar

import pytest

from cluster.api.app import build
from cluster.api.edge.connection import Connection
from cluster.api.models.model import Model, Models
from cluster.api.service import Shortcut
from engine.outputs import RequestOutput
from engine.request import Request
from tests.cluster.api.scripted import Running, Script, ScriptedService, listening, running

ROUTES = ["/v1/chat/completions", "/v1/completions"]
DIALECTS = {"/v1/messages": {"max_tokens": 20}, "/v1/responses": {}}
TEXTS = ["Hello", "", " w\u00f6rld", '"\\\n\0\x7f', "\u2028x\x85\u2029", "\U0001f600", "data: [DONE]\n\n"]
TEXTS += ["\0text\0", "<b>", "."]
TIMEOUT = 30  # seconds until a test that waits for an event has failed
CHANGING = re.compile(rb'"(item_)?id":"[^"]+"|"(created|created_at|completed_at)":[0-9]+|date: [^\r]+')


@pytest.fixture(scope="module")
def direct() -> Iterator[Running]:
    with running(http=Connection) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[Running]:
    with running(http="httptools") as server:
        yield server


def ask(port: int, route: str, prompt: str = "x", **fields: object) -> socket.socket:
    messages = [{"role": "user", "content": prompt}]
    names = {ROUTES[1]: "prompt", "/v1/responses": "input"}
    body = {names[route]: prompt} if route in names else {"messages": messages}
    data = json.dumps({"stream": True, **body, **fields}).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    head = f"POST {route} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def rest(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("fields", "takes_shortcut"),
    [
        ({}, True),
        ({"stream_options": {"include_usage": True}}, True),
        ({"unheard_of": 1}, True),
        ({"n": 2}, False),
        ({"logprobs": 1}, False),
    ],
)
def test_the_bytes_are_those_of_the_long_way(
    direct: Running, plain: Running, route: str, fields: dict[str, object], takes_shortcut: bool
) -> None:
    if "logprobs" in fields and route == ROUTES[0]:
        fields = {"logprobs": True}
    answer = same_answer(direct, plain, route, fields)
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert direct.service.num_by_shortcut == (len(TEXTS) - 2 if takes_shortcut else 0)


@pytest.mark.parametrize("route", DIALECTS)
def test_so_they_are_in_the_other_dialects(direct: Running, plain: Running, route: str) -> None:
    """Of /v1/responses, events are numbered, and the last ones repeat the text."""
    answer = same_answer(direct, plain, route, DIALECTS[route])
    assert answer.count(b"_delta") + answer.count(b"text.delta") >= len([text for text in TEXTS if text])
    assert direct.service.num_by_shortcut == len(TEXTS) - 2


def same_answer(direct: Running, plain: Running, route: str, fields: Mapping[str, object]) -> bytes:
    """Of both servers, without what is each answer's own."""
    answers = []
    direct.service.num_by_shortcut = 0
    for server in (direct, plain):
        server.service.scripts["x"] = Script(TEXTS)
        answers.append(CHANGING.sub(b"", rest(ask(server.port, route, **fields))))
    assert answers[0] == answers[1]
    assert plain.service.num_by_shortcut == 0
    return answers[0]


def test_a_model_named_like_the_text_to_be_replaced_takes_the_long_way() -> None:
    service = ScriptedService()
    service.scripts["x"] = Script(TEXTS)
    app = build(service, Models.one(service, Model(name="\0text\0", max_model_len=64, vocab_size=1000)))
    with listening(app, http=Connection) as port:
        answer = rest(ask(port, ROUTES[1]))
    assert answer.count(b"data: {") == len([text for text in TEXTS if text])
    assert service.num_by_shortcut == 0


class Torrent(ScriptedService):
    """A service that says more than a connection can hold, as fast as it is let."""

    text = "z" * 1000
    num_texts = 20_000
    highest = 0  # bytes that waited in a connection's buffer
    num_long = 0  # deltas that did not take the shortcut

    def __init__(self) -> None:
        super().__init__()
        self.scripts["x"] = Script([self.text] * self.num_texts)
        self.has_filled = threading.Event()

    async def generate(self, request: Request, shortcut: Shortcut | None = None) -> AsyncGenerator[RequestOutput, None]:
        def watched(text: str, token_ids: Sequence[int]) -> bool:
            assert shortcut is not None
            is_written = shortcut(text, token_ids)
            self.highest = max(self.highest, *(each.get_write_buffer_size() for each in Noted.transports))
            return is_written

        async for output in super().generate(request, watched):
            self.num_long += 1
            if self.num_long > 1:
                self.has_filled.set()
            yield output


class Noted(Connection):
    transports: ClassVar[list[asyncio.Transport]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transports.append(transport)


def test_a_client_that_reads_slowly_gets_everything_from_a_bounded_buffer() -> None:
    service = Torrent()
    app = build(service, Models.one(service, Model(name="m", max_model_len=64, vocab_size=1000)))
    with listening(app, http=Noted) as port:
        connection = ask(port, ROUTES[1])
        assert service.has_filled.wait(TIMEOUT)
        answer = rest(connection)
    assert answer.count(service.text.encode()) == service.num_texts
    assert 2 < service.num_long < service.num_texts
    assert 0 < service.highest < 128 << 10
