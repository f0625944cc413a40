"""The description holds for what it describes."""

import json
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from cluster.api.app import build
from cluster.api.protocol import ChatRequest, CompletionRequest
from tests.cluster.api.scripted import MODEL, ScriptedService


@pytest.fixture(scope="module")
def document(http: httpx.Client) -> dict[str, Any]:
    return http.get("/openapi.json").json()


def test_every_route_is_described(document: dict[str, Any]) -> None:
    app = build(ScriptedService(), model_name=MODEL, max_model_len=8, vocab_size=8)
    routes = {(route.path.replace(":path", ""), *route.methods) for route in app.routes if isinstance(route, APIRoute)}
    described = {(path, method.upper()) for path, item in document["paths"].items() for method in item}
    assert described == routes - {("/openapi.json", "GET")}


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= schemas.keys()
    assert {"ChatRequest", "CompletionRequest", "ChatCompletion", "Completion", "Error"} <= names


def test_request_fields_are_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for request in (ChatRequest, CompletionRequest):
        assert schemas[request.__name__]["properties"].keys() == request.model_fields.keys()
    assert schemas["ChatRequest"]["required"] == ["messages"]
    temperature = schemas["ChatRequest"]["properties"]["temperature"]["anyOf"][0]
    assert temperature == {"type": "number", "minimum": 0, "maximum": 2}
    assert [kind["type"] for kind in schemas["Message"]["properties"]["content"]["oneOf"]] == ["string", "array"]


def test_answers_have_the_described_fields(http: httpx.Client, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "a"}).json()
    assert answer.keys() <= schemas["Completion"]["properties"].keys()
    assert answer["choices"][0].keys() <= schemas["CompletionChoice"]["properties"].keys()
    message = http.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
    ).json()
    assert set(schemas["ChatCompletion"]["required"]) <= message.keys()
