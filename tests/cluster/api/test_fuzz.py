"""Random bodies: an answer, or an error in its one form; never a failure of the server's."""

import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.api.requests.protocol import ChatRequest, CompletionRequest
from tests.cluster.api.scripted import MODEL

ROUTES = st.sampled_from(["/v1/chat/completions", "/v1/completions"])
FIELDS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields})
SETTINGS = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**300, 10**400, 0.5, 1e-320, 1e308]),
    st.floats(),
    st.text(),
    st.text(st.characters(categories=["Cs", "Cc", "Lu"])),
)
values = st.recursive(
    scalars,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=4), children, max_size=4),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text() | values},
        optional={"name": values, "tool_calls": values},
    ),
    max_size=3,
)


def check(http: httpx.Client, route: str, content: bytes) -> int:
    response = http.post(route, content=content, headers={"content-type": "application/json"})
    assert response.status_code < 500
    if response.status_code != 200:
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"] and error["code"] and error["type"] == "invalid_request_error"
    return response.status_code


@SETTINGS
@given(route=ROUTES, value=values)
def test_any_json(http: httpx.Client, route: str, value: Any) -> None:
    assert check(http, route, json.dumps(value).encode()) in (400, 404)


@SETTINGS
@given(
    route=ROUTES,
    fields=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4),
    prompt=st.text() | st.lists(st.integers(0, 10)) | values,
    messages=messages | values,
)
def test_any_fields(http: httpx.Client, route: str, fields: dict[str, Any], prompt: Any, messages: Any) -> None:
    body = {"model": MODEL, "prompt": prompt, "messages": messages} | fields
    check(http, route, json.dumps(body).encode())


@SETTINGS
@given(route=ROUTES, field=st.sampled_from(FIELDS), value=values, stream=st.booleans())
def test_one_bad_field(http: httpx.Client, route: str, field: str, value: Any, stream: bool) -> None:
    given = {"prompt": "a"} if route == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    check(http, route, json.dumps({"model": MODEL, **given, "stream": stream} | {field: value}).encode())


@SETTINGS
@given(route=ROUTES, content=st.binary() | st.binary(min_size=1).map(lambda data: b'{"a":"' + data + b'"}'))
def test_any_bytes(http: httpx.Client, route: str, content: bytes) -> None:
    assert check(http, route, content) == 400


@SETTINGS
@given(
    route=ROUTES,
    at=st.integers(min_value=0),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
def test_damaged_requests(http: httpx.Client, route: str, at: int, byte: int, cut: bool) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "ä\U0001f600\n"}]}]
    body = {"model": MODEL, "messages": messages, "prompt": [[1, 2], [3]], "stop": ["a"], "logit_bias": {"1": 0.5}}
    content = json.dumps(body).encode()
    at %= len(content)
    check(http, route, content[:at] if cut else content[:at] + bytes([byte]) + content[at + 1 :])
