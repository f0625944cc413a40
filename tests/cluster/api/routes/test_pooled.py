"""POST /v1/embeddings, over HTTP."""

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from engine.errors import InvalidRequest
from engine.pooling import Embedding, Pooling
from tests.cluster.api.scripted import FINGERPRINT, MAX_MODEL_LEN, MODEL, POOLED, VOCAB_SIZE, Running, Script, running

ROUTE = "/v1/embeddings"
UNIT = Embedding().vector(POOLED)


@pytest.fixture
def embedder() -> Any:
    with running(model={"hidden_size": 3}) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        yield server, http


def test_every_form_of_input(server: Running, http: httpx.Client) -> None:
    for given, prompts in (
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ):
        server.service.generated.clear()
        answer = http.post(ROUTE, json={"model": MODEL, "input": given}).json()
        assert [request.prompt for request in server.service.generated] == prompts
        assert [request.pooling for request in server.service.generated] == [Pooling("last")] * len(prompts)
        assert answer["object"] == "list" and answer["model"] == MODEL and answer["system_fingerprint"] == FINGERPRINT
        assert answer["data"] == [
            {"object": "embedding", "index": index, "embedding": UNIT.tolist()} for index in range(len(prompts))
        ]
        assert answer["usage"] == {"prompt_tokens": 3 * len(prompts), "total_tokens": 3 * len(prompts)}


def test_both_formats_through_the_openai_client(server: Running, client: openai.OpenAI) -> None:
    plain = client.embeddings.create(model=MODEL, input="x", encoding_format="float")
    packed = client.embeddings.create(model=MODEL, input="x", encoding_format="base64")
    decoded = client.embeddings.create(model=MODEL, input="x")  # asks for base64, and decodes it
    assert np.frombuffer(base64.b64decode(packed.data[0].embedding), "<f4").tolist() == UNIT.tolist()
    assert plain.data[0].embedding == decoded.data[0].embedding == UNIT.tolist()


def test_dimensions_are_the_first_ones_normalized_again(embedder: Any) -> None:
    _, http = embedder
    answer = http.post(ROUTE, json={"input": "x", "dimensions": 2}).json()
    assert answer["data"][0]["embedding"] == [float(np.float32(0.6)), float(np.float32(0.8))]
    error = http.post(ROUTE, json={"input": "x", "dimensions": 4}).json()["error"]
    assert (error["param"], error["code"]) == ("dimensions", "integer_above_max_value")
    assert "dimensions=4 exceeds the 3" in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": ""}, "input", "empty_string"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ["a", ""]}, "input[1]", "empty_string"),
        ({"input": [[1], []]}, "input[1]", "empty_array"),
        ({"input": ["a", 1]}, "input[1]", "invalid_type"),
        ({"input": [1, "a"]}, "input[1]", "invalid_type"),
        ({"input": [-1]}, "input[0]", "integer_below_min_value"),
        ({"input": [VOCAB_SIZE]}, "input", "invalid_value"),
        ({"input": [[1], [VOCAB_SIZE]]}, "input[1]", "invalid_value"),
        ({"input": [1] * (MAX_MODEL_LEN + 1)}, "input", "context_length_exceeded"),
        ({"input": [[1], [1] * (MAX_MODEL_LEN + 1)]}, "input[1]", "context_length_exceeded"),
        ({"input": ["a"] * 2049}, "input", "array_above_max_length"),
        ({"input": {"text": "a"}}, "input", "invalid_type"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "unsupported_value"),
        ({"input": "a", "dimensions": 0}, "dimensions", "integer_below_min_value"),
        ({"input": "a", "dimensions": 1.5}, "dimensions", "invalid_type"),
        ({"input": "a", "dimensions": True}, "dimensions", "invalid_type"),
        ({"input": "a", "user": 1}, "user", "invalid_type"),
        ({"input": "a", "timeout": 0}, "timeout", "decimal_below_min_value"),
        ({"input": "a", "messages": [{}]}, "messages", "unsupported_parameter"),
        ({"input": "a", "model": "other"}, "model", "model_not_found"),
    ],
)
def test_bad_input(server: Running, http: httpx.Client, body: dict[str, Any], param: str, code: str) -> None:
    answer = http.post(ROUTE, json=body)
    error = answer.json()["error"]
    assert answer.status_code in (400, 404)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert server.service.generated == []


def test_a_whole_context_of_ids_is_taken(server: Running, http: httpx.Client) -> None:
    assert http.post(ROUTE, json={"input": [1] * MAX_MODEL_LEN}).status_code == 200


def test_an_engines_complaint_names_the_input(server: Running, http: httpx.Client) -> None:
    too_long = InvalidRequest("too long", param="prompt", code="context_length_exceeded")
    server.service.scripts["long"] = Script([], error=too_long)
    error = http.post(ROUTE, json={"input": ["short", "long"]}).json()["error"]
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")


def test_a_longer_input_may_be_cut(server: Running, http: httpx.Client) -> None:
    long_one = list(range(MAX_MODEL_LEN + 9))
    for asked, kept in ((5, 5), (-1, MAX_MODEL_LEN), (MAX_MODEL_LEN, MAX_MODEL_LEN)):
        server.service.generated.clear()
        answer = http.post(
            ROUTE, json={"input": long_one, "truncate_prompt_tokens": asked, "add_special_tokens": False}
        )
        assert answer.status_code == 200
        (request,) = server.service.generated
        assert (request.max_prompt_tokens, request.add_special_tokens) == (kept, False)
        assert request.prompt[-kept:] == long_one[-kept:]
    error = http.post(ROUTE, json={"input": "a", "truncate_prompt_tokens": MAX_MODEL_LEN + 1}).json()["error"]
    assert (error["param"], error["code"]) == ("truncate_prompt_tokens", "context_length_exceeded")


def test_unknown_fields_are_told(server: Running, http: httpx.Client) -> None:
    answer = http.post(ROUTE, json={"input": "a", "dimension": 2})
    assert answer.json()["warnings"] == ["ignored: unknown field 'dimension'; did you mean 'dimensions'?"]
    assert "dimension" in answer.headers["warning"]


def test_priority_salt_and_timeout_go_to_the_engine(server: Running, http: httpx.Client) -> None:
    http.post(ROUTE, json={"input": "a", "priority": 3, "cache_salt": "s", "timeout": 9})
    (request,) = server.service.generated
    assert (request.priority, request.cache_salt, request.timeout) == (3, "s", 9)
