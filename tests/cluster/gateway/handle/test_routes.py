"""Every request by both doors, over HTTP and by handle: the same answers, events and errors."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from cluster.api.app import build
from cluster.api.models.model import Model, Models
from cluster.gateway.handle import routes
from tests.cluster.api.requests.test_protocol import ACCEPTED, CASES, CHAT, COMPLETIONS, good
from tests.cluster.api.scripted import MAX_MODEL_LEN, MODEL, VOCAB_SIZE, Script, ScriptedService, running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with running() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture(scope="module")
def app(service: ScriptedService) -> FastAPI:
    return build(service, Models.one(service, Model(name=MODEL, max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE)))


def by_http(http: httpx.Client, path: str, body: Any) -> list[Any]:
    """The answer, or the events of it."""
    answer = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return [answer.json()]
    *events, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


async def by_handle(app: FastAPI, path: Any, body: Any, headers: Any = None) -> list[dict[str, Any]]:
    return [event async for event in routes.events(app, path, body, headers)]


def without_names(answers: list[Any]) -> list[Any]:
    """Without what differs between two requests, and in the order of choices: those of several
    prompts come as they will.
    """
    answers = sorted(answers, key=lambda answer: max((each["index"] for each in answer["choices"]), default=1 << 20))
    return [{name: value for name, value in answer.items() if name not in ("id", "created")} for answer in answers]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].split('/')[2]}-{str(case[1])[:40]}")
async def test_what_http_refuses(
    http: httpx.Client, app: FastAPI, service: ScriptedService, case: tuple[Any, ...]
) -> None:
    path, fields, code, *_ = case
    body = good(path) | fields
    (refusal,) = await by_handle(app, path, body)
    assert refusal["error"]["code"] == code
    assert [refusal] == by_http(http, path, body)
    assert service.generated == []


@pytest.mark.parametrize(("path", "fields"), ACCEPTED)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_http_takes(
    http: httpx.Client, service: ScriptedService, app: FastAPI, path: str, fields: dict[str, Any], stream: bool
) -> None:
    body = {"stream": stream} | good(path) | fields
    answers = await by_handle(app, path, body)
    service.generated.clear()
    assert without_names(answers) == without_names(by_http(http, path, body))
    assert all("error" not in answer for answer in answers)
    if not body["stream"]:
        assert without_names([await routes.post(app, path, body, None)]) == without_names(answers)
        service.generated.clear()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", [1]),
        ("/v1/chat/completions", "x"),
        ("/v1/chat/completions", {"prompt": float("nan")}),
        ("/v1/chat/completions", {"prompt": "\ud800"}),
        ("/v1/nothing", {}),
        ("/v1/models", {}),
        ("/", {}),
        ("/v1/chät", {}),
    ],
)
async def test_what_is_no_request(http: httpx.Client, app: FastAPI, path: str, body: Any) -> None:
    assert await by_handle(app, path, body) == by_http(http, path, body)


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (5, {}, None),
        (CHAT, {"messages": {1, 2}}, None),
        (CHAT, {}, ["traceparent"]),
        (CHAT, {}, {"traceparent": 5}),
        (CHAT, {}, {"traceparent": "ä"}),
    ],
)
async def test_what_cannot_come_over_http(app: FastAPI, path: Any, body: Any, headers: Any) -> None:
    (refusal,) = await by_handle(app, path, body, headers)
    assert (refusal["error"]["code"], refusal["error"]["type"]) == ("invalid_type", "invalid_request_error")


async def test_a_stream_is_for_the_method_that_streams(app: FastAPI, service: ScriptedService) -> None:
    error = (await routes.post(app, CHAT, good(CHAT) | {"stream": True}, None))["error"]
    assert (error["param"], error["code"]) == ("stream", "unsupported_value")
    assert "options(stream=True).events" in error["message"] and service.generated == []


async def test_values_that_json_writes_otherwise(app: FastAPI, service: ScriptedService) -> None:
    body = {"prompt": (1, 2), "logit_bias": {3: 1.0}, "stop": ("a",)}
    assert "error" not in await routes.post(app, COMPLETIONS, body, None)
    (request,) = service.generated
    service.generated.clear()
    assert (request.prompt, request.params.logit_bias, request.params.stop) == ([1, 2], {3: 1.0}, ("a",))


async def test_headers(app: FastAPI, service: ScriptedService) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    headers = {"X-Request-Timeout": "2.5", "Content-Type": "text/plain", **trace}
    assert "error" not in await routes.post(app, COMPLETIONS, {"prompt": "x"}, headers)
    (request,) = service.generated
    service.generated.clear()
    assert (request.timeout, request.trace_headers) == (2.5, trace)


async def test_a_failing_stream_ends_with_its_error(http: httpx.Client, app: FastAPI, service: ScriptedService) -> None:
    service.scripts["bad"] = Script(["a", "b"], error=RuntimeError("a bug"))
    *chunks, last = await by_handle(app, COMPLETIONS, {"prompt": "bad", "stream": True})
    service.generated.clear()
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b"]
    assert last["error"]["code"] == "internal_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_ends_the_request(app: FastAPI, service: ScriptedService, stream: bool) -> None:
    script = service.scripts["slow"] = Script(["a"], waits=True)
    events = routes.events(app, COMPLETIONS, {"prompt": "slow", "stream": stream}, None)
    if stream:
        await anext(events)
        await events.aclose()
    else:
        asking = asyncio.ensure_future(anext(events))
        assert await asyncio.to_thread(script.waiting.wait, 60)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert script.closed.is_set()
    service.generated.clear()
