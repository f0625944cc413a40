"""Every answer names the weights that a trainer gave the engine, if it gave any."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from msgspec import UNSET

from cluster.api.responses.generation import Tally, Update
from engine.outputs import RequestOutput
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


def test_an_answer_that_ends_with_the_models_own_weights_names_no_others() -> None:
    call: Any = SimpleNamespace(requests=[None], params=SimpleNamespace(n=1), turn=None)
    tally = Tally(call)
    for version, told in (("step-8", "step-8"), (None, UNSET)):
        delta = RequestOutput("a", 0, [], [], finished=False, fingerprint="f", weights_version=version)
        tally.add(Update(0, delta))
        assert tally.engine == ("f", told)
