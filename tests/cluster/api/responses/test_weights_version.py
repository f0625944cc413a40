"""Every answer names the weights that a trainer gave the engine, if it gave any."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.pooling import Pooling
from tests.cluster.api.scripted import Running, running

SAID = [{"role": "user", "content": "x"}]
STREAMED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "x"},
    "/v1/messages": {"messages": SAID, "max_tokens": 9},
    "/v1/responses": {"input": "x", "store": False},
}
WHOLE: dict[str, dict[str, Any]] = STREAMED | {
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "x", "documents": ["a"]},
    "/v1/score": {"text_1": "x", "text_2": "a"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(model={"judging": Pooling("logprobs", (41, 42))}) as server:
        yield server


@pytest.mark.parametrize("version", ["step-8", None])
@pytest.mark.parametrize("route", WHOLE)
def test_a_whole_answer(server: Running, route: str, version: str | None) -> None:
    server.service.weights_version = version
    answer = httpx.post(server.url + route, json=WHOLE[route], timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json().get("weights_version") == version
    assert ("weights_version" in answer.json()) == (version is not None)


@pytest.mark.parametrize("route", STREAMED)
def test_a_stream(server: Running, route: str) -> None:
    server.service.weights_version = "step-8"
    answer = httpx.post(server.url + route, json=STREAMED[route] | {"stream": True}, timeout=60)
    first = next(line for line in answer.text.splitlines() if line.startswith("data: "))
    told = json.loads(first.removeprefix("data: "))
    assert told.get("message", told.get("response", told))["weights_version"] == "step-8"
