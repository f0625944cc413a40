"""Unknown fields: ignored and named, or rejected."""

from typing import Any

import httpx
import openai
import pytest

from tests.cluster.api.scripted import MODEL, running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hello?"}


def good(route: str) -> dict[str, Any]:
    return {"model": MODEL, **({"messages": [USER]} if route == CHAT else {"prompt": "Hello?"})}


@pytest.mark.parametrize("stream", [True, False])
def test_unknown_fields_are_ignored_and_named(http: httpx.Client, stream: bool) -> None:
    message = {**USER, "mood": "good", "content": [{"type": "text", "text": "x", "cache_control": {}}]}
    fields = {"stream": stream, "messages": [message], "frobnicate": 1, 'evil"\r\nx: y': 2}
    response = http.post(CHAT, json={"model": MODEL, **fields})
    assert response.status_code == 200
    assert response.headers["warning"] == (
        '299 squadron "ignored fields: frobnicate, evil???x??y, messages[0].mood, messages[0].content[0].cache_control"'
    )


def test_a_warning_does_not_grow(http: httpx.Client) -> None:
    response = http.post(CHAT, json=good(CHAT) | {f"x{index}" * 100: 1 for index in range(1000)})
    assert response.status_code == 200
    assert response.headers["warning"].endswith(', ..."')
    assert len(response.headers["warning"]) < 1000
    assert len(response.json()["warnings"]) == 9
    assert len(str(response.json()["warnings"])) < 1000


def test_quotes_of_an_error_are_jsons_and_apostrophes_stay(http: httpx.Client) -> None:
    schemas = [{"type": "array"}, {"type": "object", "required": "it's"}]
    tools = [[{"type": "function", "function": {"name": "f", "parameters": schema}}] for schema in schemas]
    told = [http.post(CHAT, json=good(CHAT) | {"tools": each}).json()["error"]["message"] for each in tools]
    assert "A function's parameters are an object, got" in told[0]
    assert '"it\'s" is not of type "array", got' in told[1]


HINTS: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"verbosity": "low"}, "verbosity"),
    (CHAT, {"store": True}, "store"),
    (COMPLETIONS, {"service_tier": "flex"}, "service_tier"),
    (CHAT, {"service_tier": "fast"}, "service_tier"),
    *[(route, {"request_id": "mine"}, "request_id") for route in (CHAT, COMPLETIONS)],
    ("/v1/responses", {"input": "x", "store": False, "text": {"verbosity": "high"}}, "text.verbosity"),
    ("/v1/responses", {"input": "x", "store": False, "reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ("/v1/responses", {"input": "x", "store": False, "service_tier": "priority"}, "service_tier"),
]


@pytest.mark.parametrize(("route", "fields", "name"), HINTS)
def test_a_hint_without_effect_is_told(http: httpx.Client, route: str, fields: dict[str, Any], name: str) -> None:
    body = good(route) | fields if route in (CHAT, COMPLETIONS) else fields
    answer = http.post(route, json=body)
    assert (answer.status_code, answer.headers["warning"]) == (200, f'299 squadron "ignored fields: {name}"')
    (told,) = answer.json()["warnings"]
    assert told.startswith(f"ignored: '{name}' has no effect: ")


def test_unknown_fields_of_an_object_in_a_field_are_told(http: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "stricct": True}}
    answer = http.post(
        CHAT, json=good(CHAT) | {"response_format": form, "prediction": {"type": "content", "content": ""}}
    )
    assert answer.json()["warnings"] == [
        "ignored: unknown field 'response_format.json_schema.stricct'; did you mean "
        "'response_format.json_schema.strict'?"
    ]


TYPO = ["ignored: unknown field 'max_token'; did you mean 'max_tokens'?"]


def test_an_answer_says_what_was_ignored_of_its_request(client: openai.OpenAI) -> None:
    typo = {"max_token": 5, "frobnicate": None}
    assert client.completions.create(model=MODEL, prompt="x", extra_body=typo).warnings == TYPO
    assert client.chat.completions.create(model=MODEL, messages=[USER], extra_body=typo).warnings == TYPO


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
@pytest.mark.parametrize("n", [1, 2])
def test_the_last_chunk_says_what_was_ignored(client: openai.OpenAI, options: dict[str, bool] | None, n: int) -> None:
    own: dict[str, Any] = {"extra_body": {"max_token": 5}, "stream": True, "stream_options": options, "n": n}
    for stream in (
        client.completions.create(model=MODEL, prompt="x", **own),
        client.chat.completions.create(model=MODEL, messages=[USER], **own),
    ):
        *before, last = stream
        assert last.warnings == TYPO
        assert not any(hasattr(chunk, "warnings") for chunk in before)


@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_is_strict_refuses_unknown_fields(stream: bool) -> None:
    with running(strict_fields=True) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        for route in (CHAT, COMPLETIONS):
            answer = http.post(route, json=good(route) | {"stream": stream, "max_token": 5, "frobnicate": 1})
            assert (answer.status_code, answer.json()["error"]) == (
                400,
                {
                    "message": "unknown field 'max_token'; did you mean 'max_tokens'?",
                    "type": "invalid_request_error",
                    "param": "max_token",
                    "code": "unknown_parameter",
                },
            )
            assert http.post(route, json=good(route) | {"stream": stream, "frobnicate": None}).status_code == 200
        answer = http.post(CHAT, json=good(CHAT) | {"verbosity": "low"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "verbosity", "unsupported_value")
        answer = http.post(CHAT, json={"messages": [USER | {"contents": "x"}]})
        assert answer.json()["error"]["param"] == "messages[0].contents"
        assert "'messages[0].content'" in answer.json()["error"]["message"]
