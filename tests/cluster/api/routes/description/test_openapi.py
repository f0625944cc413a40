"""The description holds for what it describes."""

import json
from itertools import product
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.routing import Route

from cluster.api.app import build
from cluster.api.models.model import Model, Models
from cluster.api.requests.pooled.protocol import EmbeddingRequest, RerankRequest, ScoreRequest
from cluster.api.requests.protocol import ChatRequest, CompletionRequest
from cluster.api.requests.validate import validate
from engine.errors import InvalidRequest
from engine.sampling_params import RANGES
from tests.cluster.api.scripted import MODEL, ScriptedService
from tests.cluster.api.test_fuzz import FIELDS, values


@pytest.fixture(scope="module")
def document(session_http: httpx.Client) -> dict[str, Any]:
    return session_http.get("/openapi.json").json()


def test_every_route_is_described(document: dict[str, Any]) -> None:
    service = ScriptedService()
    app = build(service, Models.one(service, Model(name=MODEL, max_model_len=8, vocab_size=8)))
    routes = {(route.path.replace(":path", ""), *route.methods) for route in app.routes if isinstance(route, Route)}
    described = {(path, method.upper()) for path, item in document["paths"].items() for method in item}
    routes = {(path, *sorted(set(methods) - {"HEAD"})) for path, *methods in routes}  # as GET, without a body
    assert described == routes - {("/openapi.json", "GET")}


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= schemas.keys()
    assert {"ChatRequest", "CompletionRequest", "ChatCompletion", "Completion", "Error"} <= names


def test_request_fields_are_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for request in GIVEN:
        assert schemas[request.__name__]["properties"].keys() == request.model_fields.keys()
    assert schemas["ChatRequest"]["required"] == ["messages"]
    temperature = schemas["ChatRequest"]["properties"]["temperature"]["anyOf"][0]
    assert temperature == {"type": "number", "minimum": 0, "maximum": 2}
    assert [kind["type"] for kind in schemas["Message"]["properties"]["content"]["oneOf"]] == ["string", "array"]


@pytest.mark.parametrize("request_kind", ["ChatRequest", "CompletionRequest"])
def test_numbers_have_the_engines_limits(document: dict[str, Any], request_kind: str) -> None:
    properties = document["components"]["schemas"][request_kind]["properties"]
    for name, allowed in RANGES.items():
        if name not in properties or name == "logprobs":  # which in chat is a truth
            continue
        described = properties[name]["anyOf"][0]
        low = described.get("minimum", described.get("exclusiveMinimum"))
        assert described["maximum"] == allowed.high, name
        lower = {"top_k": -1, "repetition_penalty": 0.01, "thinking_token_budget": -1}  # of what stands for none
        if request_kind == "CompletionRequest":
            lower["max_tokens"] = 0  # asks for the prompt alone
        assert low == allowed.low or low == lower.get(name), name


USER = {"role": "user", "content": "a"}
GIVEN: dict[type[BaseModel], dict[str, Any]] = {
    ChatRequest: {"messages": [USER]},
    CompletionRequest: {"prompt": "a"},
    EmbeddingRequest: {"input": "a"},
    RerankRequest: {"query": "a", "documents": ["a"]},
    ScoreRequest: {"text_1": "a", "text_2": ["a"]},
}
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        0.5,
        1e308,
        "",
        "ok",
        "a b",
        "x" * 300,
        "x" * 1001,
        "auto",
        "none",
        "medium",
    ),
    *(
        [],
        [[]],
        [None],
        [""],
        ["a"] * 5,
        ["a"] * 129,
        [1],
        [1, "a"],
        ["a", 1],
        [-1],
        [2**31],
        [True],
        [[1], []],
        ["text"],
    ),
    *(
        {},
        {"type": "text"},
        {"type": "x"},
        {"1": 5},
        {"01": 5},
        {"1": 101},
        {"a": "b"},
        {"a": "b" * 513},
        {"a" * 65: "b"},
    ),
    *({"include_usage": True}, {"continuous_usage_stats": False}, {"continuous_usage_stats": True}, {"x": 1}),
    *({str(number): 1 for number in range(count)} for count in (1024, 1025)),
    *({str(number): "" for number in range(count)} for count in (16, 17)),
]
ROLES: list[Any] = ["", "user", "developer", "tool", "wizard", None, 1]
TEXT_PART = {"type": "text", "text": "x"}
CONTENTS: list[Any] = ["", None, 1, {}, [], [None], [TEXT_PART], [TEXT_PART | {"type": "x"}], [{"type": "text"}]]


def check_that_it_holds(document: dict[str, Any], kind: type[BaseModel], body: dict[str, Any]) -> None:
    """The schema allows what is taken, and nothing else."""
    reference = {"$ref": f"#/components/schemas/{kind.__name__}", "components": document["components"]}
    is_allowed = jsonschema.Draft202012Validator(reference).is_valid(body)
    try:
        validate(kind, body)
    except InvalidRequest as error:
        assert not is_allowed, error.message
    else:
        assert is_allowed


@pytest.mark.parametrize("kind", GIVEN)
def test_the_schema_allows_what_is_taken(document: dict[str, Any], kind: type[BaseModel]) -> None:
    for name in sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *kind.model_fields}):
        for value in VALUES:
            check_that_it_holds(document, kind, GIVEN[kind] | {name: value})


def test_the_schema_allows_the_messages_that_are_taken(document: dict[str, Any]) -> None:
    for role, content in product(ROLES, CONTENTS):
        for more in ({}, {"tool_calls": []}, {"tool_calls": [{}]}, {"function_call": {}}, {"name": "x"}):
            check_that_it_holds(document, ChatRequest, {"messages": [{"role": role, "content": content} | more]})
    for count in (8192, 8193):
        check_that_it_holds(document, ChatRequest, {"messages": [USER] * count})
        check_that_it_holds(document, ChatRequest, {"messages": [USER | {"content": [TEXT_PART] * count}]})
    check_that_it_holds(document, CompletionRequest, {"prompt": ["a"] * 1025})


# JSON Schema takes 1.0 for an integer, and half of a surrogate pair, which no body gets past the
# parser with, for a text.
no_whole_floats = values.filter(
    lambda value: not any(part in json.dumps(value) for part in (".0", "e", "\\ud", "\\uD"))
)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(sorted(GIVEN, key=str)), name=st.sampled_from(FIELDS), value=no_whole_floats)
def test_the_schema_allows_what_is_taken_of_anything(
    document: dict[str, Any], kind: type[BaseModel], name: str, value: Any
) -> None:
    check_that_it_holds(document, kind, GIVEN[kind] | {name: value})


def test_answers_have_the_described_fields(http: httpx.Client, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "a"}).json()
    assert answer.keys() <= schemas["Completion"]["properties"].keys()
    assert answer["choices"][0].keys() <= schemas["CompletionChoice"]["properties"].keys()
    message = http.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
    ).json()
    assert set(schemas["ChatCompletion"]["required"]) <= message.keys()
