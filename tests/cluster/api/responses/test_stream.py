"""What happens when either end breaks off, over real connections."""

import asyncio
import json
import socket
from collections.abc import Iterator

import httpx
import openai
import pytest
from starlette.types import Message

from cluster.api.app import build
from cluster.api.edge.connection import Connection
from cluster.api.errors import ApiError, Unavailable
from cluster.api.models.model import Model, Models
from engine.errors import (
    EngineDead,
    InputProcessingError,
    InvalidRequest,
    Overloaded,
    RequestQuarantined,
    WorkerLost,
)
from tests.cluster.api.scripted import MODEL, Running, Script, ScriptedService, running

ROUTES = ["/v1/chat/completions", "/v1/completions"]
TIMEOUT = 10  # seconds until a test that waits for an event has failed


@pytest.fixture(scope="module", params=["httptools", "h11", Connection])
def any_server(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Both of uvicorn's implementations of HTTP, which end connections in code of their own, and
    ours, which writes plain events itself.
    """
    with running(http=request.param) as server:
        yield server


def body(prompt: str, **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "prompt": prompt, **fields}


def post(server: Running, route: str, fields: dict[str, object]) -> socket.socket:
    """A connection on which the request has been sent."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT)
    data = json.dumps(fields).encode()
    head = f"POST {route} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("script", "code"),
    [
        (Script(["a", "b"], error=Unavailable("lost", code="engine_restarting", retry_after=1)), "engine_restarting"),
        (Script(["a", "b"], error=EngineDead("lost")), "engine_restarting"),
        (Script(["a", "b"], error=RuntimeError("a secret")), "internal_error"),
        (Script(["a", "b"], finishes=False), "generation_failed"),
        (Script(["a", "b"], finish_reason="error"), "generation_failed"),
        (Script(["a", "b"], finish_reason="error", error_code="request_quarantined"), "request_quarantined"),
        (Script(["a", "b"], error=RequestQuarantined("twice")), "request_quarantined"),
        (Script(["a", "b"], finish_reason="abort"), "request_aborted"),
    ],
)
def test_failed_stream_never_ends_cleanly(any_server: Running, route: str, script: Script, code: str) -> None:
    any_server.service.scripts["fail"] = script
    with post(any_server, route, body("fail", stream=True)) as connection:
        received = b""
        while data := connection.recv(1 << 16):  # until the server closes
            received += data
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"secret" not in received
    assert b"[DONE]" not in received
    assert not received.endswith(b"0\r\n\r\n")
    frame = received[received.index(b'data: {"error"') :].removeprefix(b"data: ").split(b"\n\n")[0]
    assert json.loads(frame)["error"]["code"] == code


def test_clients_see_a_failed_stream(any_server: Running) -> None:
    any_server.service.scripts["fail"] = Script(["a"], error=EngineDead("lost"))
    with httpx.Client(base_url=any_server.url) as http, pytest.raises(httpx.RemoteProtocolError):
        http.post(ROUTES[0], json=body("fail", stream=True))
    with openai.OpenAI(base_url=f"{any_server.url}/v1", api_key="any") as client:
        texts = []
        with pytest.raises(openai.APIError) as caught:
            for chunk in client.completions.create(model=MODEL, prompt="fail", stream=True):
                texts.append(chunk.choices[0].text)
    assert (texts, caught.value.code) == (["a"], "engine_restarting")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "kind", "code", "retry_after"),
    [
        (Overloaded("full"), openai.InternalServerError, "server_overloaded", {"3", "4"}),
        (
            ApiError(429, "slow", code="rate_limit_exceeded", retry_after=7.5),
            openai.RateLimitError,
            "rate_limit_exceeded",
            {"8"},
        ),
        (Unavailable("", code="shutting_down", retry_after=999), openai.InternalServerError, "shutting_down", {"120"}),
        (Unavailable("", code="not_ready", retry_after=0), openai.InternalServerError, "not_ready", {"1"}),
        (EngineDead("lost"), openai.InternalServerError, "engine_restarting", {str(second) for second in range(6, 11)}),
        (InputProcessingError("template"), openai.InternalServerError, "generation_failed", {None}),
        (WorkerLost(1, "a secret"), openai.InternalServerError, "internal_error", {None}),
        (RuntimeError("a secret"), openai.InternalServerError, "internal_error", {None}),
        (
            InvalidRequest("too long", param="messages", code="context_length_exceeded"),
            openai.BadRequestError,
            "context_length_exceeded",
            {None},
        ),
    ],
)
def test_failure_before_the_first_token_has_its_status(
    server: Running,
    client: openai.OpenAI,
    stream: bool,
    error: Exception,
    kind: type[openai.APIStatusError],
    code: str,
    retry_after: set[str | None],
) -> None:
    server.service.scripts["fail"] = Script([], error=error)
    messages = [{"role": "user", "content": "fail"}]
    with pytest.raises(kind) as caught:
        client.chat.completions.create(model=MODEL, messages=messages, stream=stream)
    assert caught.value.code == code
    assert caught.value.response.headers.get("retry-after") in retry_after
    assert "secret" not in caught.value.message
    is_unforeseen = code == "internal_error"
    assert caught.value.response.headers.get("connection") == ("close" if is_unforeseen else None)


@pytest.mark.parametrize("code", ["generation_failed", "request_aborted"])
def test_failed_choice_is_no_answer(server: Running, client: openai.OpenAI, code: str) -> None:
    reason = {"generation_failed": "error", "request_aborted": "abort"}[code]
    server.service.scripts["fail"] = Script(["a"], finish_reason=reason)
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model=MODEL, prompt="fail")
    assert caught.value.code == code


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("texts", [[], ["a", "b"]])
def test_a_client_that_goes_aborts_its_request(any_server: Running, route: str, stream: bool, texts: list[str]) -> None:
    script = any_server.service.scripts["wait"] = Script(texts, waits=True)
    with post(any_server, route, body("wait", stream=stream)) as connection:
        if stream and texts:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert script.waiting.wait(TIMEOUT)
        assert not script.closed.is_set()
    assert script.closed.wait(TIMEOUT)


def test_a_client_that_goes_aborts_all_its_prompts(any_server: Running) -> None:
    scripts = [Script([], waits=True) for _ in range(3)]
    any_server.service.scripts.update({str(index): script for index, script in enumerate(scripts)})
    with post(any_server, "/v1/completions", body("") | {"prompt": ["0", "1", "2"]}):
        assert all(script.waiting.wait(TIMEOUT) for script in scripts)
    assert all(script.closed.wait(TIMEOUT) for script in scripts)


def test_a_client_that_goes_before_its_body_has_come(any_server: Running) -> None:
    with socket.create_connection(("127.0.0.1", any_server.port), timeout=TIMEOUT) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
        )
    assert httpx.get(f"{any_server.url}/health").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_cancelling_the_application_aborts_the_request(stream: bool) -> None:
    """The way Ray Serve tells of a client that has gone."""
    service = ScriptedService()
    script = service.scripts["wait"] = Script(["a"], waits=True)
    app = build(service, Models.one(service, Model(name=MODEL, max_model_len=8, vocab_size=8)))
    sent: asyncio.Queue[Message] = asyncio.Queue()
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": json.dumps(body("wait", stream=stream)).encode()})
    headers = [(b"content-type", b"application/json")]
    path = "/v1/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}
    task = asyncio.create_task(app(scope, incoming.get, sent.put))
    assert await asyncio.to_thread(script.waiting.wait, TIMEOUT)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert script.closed.is_set()
    assert sent.qsize() == (2 if stream else 0)


def test_a_connection_serves_on_after_a_stream(http: httpx.Client) -> None:
    for _ in range(2):
        assert http.post("/v1/completions", json=body("a", stream=True)).text.endswith("data: [DONE]\n\n")


def test_events_survive_readers_that_split_by_unicode_lines(server: Running, http: httpx.Client) -> None:
    text = "a\u2028b\u2029c\x85d\ne\x0cf"
    server.service.scripts["lines"] = Script([text])
    with http.stream("POST", "/v1/completions", json=body("lines", stream=True)) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["text"] == text
