"""What other Ray jobs send and are sent, by the functions behind the application's handle."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cluster.api.models.model import Model, Models
from cluster.api.requests.protocol import HandleRequest
from cluster.gateway.handle import handle
from tests.cluster.api.requests.test_protocol import COMMON, OF_CHAT, OF_COMPLETIONS
from tests.cluster.api.scripted import (
    FINGERPRINT,
    MAX_MODEL_LEN,
    MODEL,
    PROMPT_IDS,
    VOCAB_SIZE,
    ScriptedService,
    running,
)

USER = {"role": "user", "content": "Hello?"}
WHOLE = Model(name=MODEL, max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with running() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


async def test_a_streams_first_answer_alone_has_the_prompts_ids(service: ScriptedService) -> None:
    answers = [answer async for answer in handle.stream(Models.one(service, WHOLE), {"prompt": "x"})]
    assert [answer["prompt_token_ids"] for answer in answers] == [PROMPT_IDS, [], []]
    assert (await handle.generate(Models.one(service, WHOLE), {"prompt": "x"}))["prompt_token_ids"] == PROMPT_IDS


async def test_an_answer_says_what_its_tokens_depend_on(service: ScriptedService) -> None:
    answers = [await handle.generate(Models.one(service, WHOLE), {"prompt": "x"})]
    answers += [answer async for answer in handle.stream(Models.one(service, WHOLE), {"prompt": "x"})]
    assert {answer["system_fingerprint"] for answer in answers} == {FINGERPRINT}
    assert (await handle.generate(Models.one(service, WHOLE), {"prompt": "x", "n": 0}))["system_fingerprint"] is None


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "tool", "content": "4"}]},
        {"messages": [{"role": "wizard", "content": "4"}]},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": []},
        {"messages": "Hello?"},
        {"messages": [USER] * 8193},
        {"messages": [USER], "priority": -5},
        {"messages": [USER], "priority": 2**31},
        {"messages": [USER], "priority": True},
        {"messages": [USER], "cache_salt": "a b"},
        {"messages": [USER], "cache_salt": 1},
    ],
    ids=lambda fields: str(fields)[:50],
)
async def test_what_http_refuses_the_handle_refuses(
    service: ScriptedService, http: httpx.Client, fields: dict[str, Any]
) -> None:
    by_http = http.post("/v1/chat/completions", json={"model": MODEL, **fields}).json()
    answer = await handle.chat(Models.one(service, WHOLE), fields)
    assert answer["error"] == by_http["error"]
    assert answer["finished"] and service.generated == []


def by_either_door() -> list[tuple[dict[str, Any], str]]:
    """What is wrong with a request whoever brings it, and the code: all but what only the engine
    can refuse, which knows its model.
    """
    cases = [({"prompt": "x"} | fields, code) for fields, code, *_ in COMMON + OF_COMPLETIONS]
    cases += [(fields, code) for fields, code, *_ in OF_CHAT if fields.keys() == {"messages"}]
    cases = [(fields, code) for fields, code in cases if fields.keys() <= HandleRequest.model_fields.keys()]
    return [(fields, code) for fields, code in cases if not (is_the_engines(fields, code) or is_of_http(fields))]


def is_the_engines(fields: dict[str, Any], code: str) -> bool:
    has_too_many = any(len(fields.get(name, ())) == VOCAB_SIZE + 1 for name in ("stop_token_ids", "allowed_token_ids"))
    return code == "context_length_exceeded" or str(VOCAB_SIZE) in str(fields) or has_too_many


def is_of_http(fields: dict[str, Any]) -> bool:
    """Several prompts, a null for what a handle request may leave out, an id, which the handle
    takes, or a stream, which has a method of its own.
    """
    prompt = fields.get("prompt")
    has_several = isinstance(prompt, list) and isinstance(next(iter(prompt), None), str | list)
    is_other = "request_id" in fields or {"best_of", "stream"} <= fields.keys()
    return has_several or is_other or None in (fields.get("prompt", ""), fields.get("messages", ""))


@pytest.mark.parametrize(("fields", "code"), by_either_door(), ids=lambda case: str(case)[:60])
async def test_limits_are_those_of_http(
    service: ScriptedService, http: httpx.Client, fields: dict[str, Any], code: str
) -> None:
    route = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    by_http = http.post(route, json={"model": MODEL, **fields}).json()["error"]
    error = (await handle.generate(Models.one(service, WHOLE), fields))["error"]
    assert (error["code"], error["param"]) == (code, by_http["param"])
    # A body by HTTP may ask for no token, and show its prompt.
    assert error == by_http or "prompt" in by_http["param"] or by_http["param"] == "max_tokens"
    assert service.generated == []


@pytest.mark.parametrize(
    ("request_", "param", "code"),
    [
        ("x", None, "invalid_type"),
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": "x", "messages": [USER]}, "prompt", "missing_required_parameter"),
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": "x", "max_token": 5}, "max_token", "unknown_parameter"),
        ({"messages": [USER | {"mood": "Ada"}]}, "messages[0].mood", "unknown_parameter"),
        ({"prompt": "x", "stream": True}, "stream", "invalid_value"),
        ({"prompt": "x", "model": "other"}, "model", "model_not_found"),
        ({"prompt": "x", "stop": 5}, "stop", "invalid_type"),
        ({"prompt": "x", "logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"prompt": "x", "ignore_eos": 1}, "ignore_eos", "invalid_type"),
        ({"prompt": "x", "temperature": 1e-300}, "temperature", "decimal_below_min_value"),
        ({"prompt": "x", "request_id": 5}, "request_id", "invalid_type"),
    ],
)
async def test_refused(service: ScriptedService, request_: Any, param: str | None, code: str) -> None:
    answer = await handle.generate(Models.one(service, WHOLE), request_)
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, code)
    assert service.generated == []


async def test_a_typo_is_told_with_what_was_meant(service: ScriptedService) -> None:
    error = (await handle.generate(Models.one(service, WHOLE), {"prompt": "x", "max_token": 5}))["error"]
    assert error["message"] == "unknown field 'max_token'; did you mean 'max_tokens'?"
