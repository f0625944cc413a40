"""The transport: bodies that are no JSON object, or that should not be read at all."""

import gzip
import json

import httpx
import pytest

from cluster.api.errors import ApiError
from cluster.api.requests.parse import MAX_CONTAINERS, MAX_DEPTH, MAX_KEYS, MAX_VALUES, parse_object
from tests.cluster.api.scripted import MODEL

ROUTE = "/v1/completions"
JSON = {"content-type": "application/json"}
GOOD = {"model": MODEL, "prompt": "a"}


def nested(depth: int) -> bytes:
    """An object of that depth."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"x",
        b'{"a": 1',
        b'{"a": 1}}',
        b"[]",
        b'"text"',
        b"null",
        b"1",
        b'{"a": 1,}',
        b"{'a': 1}",
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        rb'{"a": "\ud800"}',
        rb'{"a": ["\udc00\ud800"]}',
        rb'{"\udfff": 1}',
        rb'{"a": {"b": "x\ud83dx"}}',
        b'{"a": "\x00"}',
        b'{"a": 1}\x00',
        b'{"a": 1, "a": 1}',
        rb'{"b": [{"a": 1, "\u0061": 2}]}',
        b'{"a": NaN}',
        b'{"a": [Infinity]}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": [-1e999]}',
        b'{"a": 1' + b"0" * 400 + b"}",
        b'{"a": -1' + b"0" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_invalid_json(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_json", None)


@pytest.mark.parametrize("body", [nested(MAX_DEPTH + 1), nested(10**4), b"[" * 10**4, b'{"a":' * 10**4])
def test_too_deep(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert (caught.value.status, caught.value.code) == (400, "request_too_large")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (nested(10**6), f"1000000 lists and objects, at most {MAX_CONTAINERS} are taken"),
        (b'{"a": [' + b"{}," * MAX_CONTAINERS + b"{}]}", f"{MAX_CONTAINERS + 3} lists and objects, at most"),
        (b'{"a": [' + b"1," * MAX_VALUES + b"1]}", f"{MAX_VALUES + 1} values, at most {MAX_VALUES} are taken"),
        (
            b"{" + b",".join(b'"%d": 1' % key for key in range(MAX_KEYS + 1)) + b"}",
            f"{MAX_KEYS + 1} keys, at most {MAX_KEYS} are taken",
        ),
    ],
    ids=["depth", "objects", "values", "keys"],
)
def test_too_many(body: bytes, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert (caught.value.status, caught.value.code) == (400, "request_too_large")
    assert message in caught.value.message


def test_as_many_as_are_taken() -> None:
    assert len(parse_object(b"{" + b",".join(b'"%d": 1' % key for key in range(MAX_KEYS)) + b"}")) == MAX_KEYS
    assert len(parse_object(b'{"a": [' + b"1," * (MAX_VALUES - 1) + b"1]}")["a"]) == MAX_VALUES


@pytest.mark.parametrize("unit", ['[1, {"a": 2}], ', "\\", '"', '\\"', 'x\\"', 'ä"'])
def test_what_stands_in_a_string_is_not_counted(unit: str) -> None:
    """Wherever the pieces end that are counted at once."""
    for excess in range(4):
        text = " " * excess + unit * (3 * MAX_VALUES // len(unit))
        assert parse_object(json.dumps({"a": text}, ensure_ascii=False).encode()) == {"a": text}
        brackets = b"[],[" * MAX_CONTAINERS
        with pytest.raises(ApiError) as caught:
            parse_object(json.dumps([text]).encode() + brackets)
        assert caught.value.message.startswith(f"The body has {2 * MAX_CONTAINERS + 1} lists")


@pytest.mark.parametrize(
    "value",
    [{}, {"a": [1, -2.5e300, None, True, "x"]}, {"a": "\U0001f600\x00\n"}, {"ä": {"a": 10**300}}, {"a": [[{}]] * 100}],
)
def test_objects(value: dict[str, object]) -> None:
    for ensure_ascii in (True, False):
        assert parse_object(json.dumps(value, ensure_ascii=ensure_ascii).encode()) == value


def test_depth_at_the_limit() -> None:
    assert parse_object(nested(MAX_DEPTH)).keys() == {"a"}


def test_invalid_json_by_http(http: httpx.Client) -> None:
    response = http.post(ROUTE, content=b'{"a": NaN}', headers=JSON)
    assert (response.status_code, response.json()["error"]) == (
        400,
        {"message": "NaN is not JSON", "type": "invalid_request_error", "param": None, "code": "invalid_json"},
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=latin-1"},
        JSON | {"content-encoding": "gzip"},
        JSON | {"content-encoding": "br"},
    ],
)
def test_media_types(http: httpx.Client, headers: dict[str, str]) -> None:
    content = json.dumps(GOOD).encode()
    if headers.get("content-encoding") == "gzip":
        content = gzip.compress(content)
    response = http.post(ROUTE, content=content, headers=headers)
    assert (response.status_code, response.json()["error"]["type"]) == (415, "invalid_request_error")


def test_no_content_type(http: httpx.Client) -> None:
    assert http.post(ROUTE, content=json.dumps(GOOD).encode()).status_code == 415


def test_json_with_a_charset(http: httpx.Client) -> None:
    headers = {"content-type": 'Application/JSON; Charset="UTF-8"', "content-encoding": "identity"}
    assert http.post(ROUTE, content=json.dumps(GOOD).encode(), headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", ROUTE, 405, "method_not_supported"),
        ("PUT", "/v1/chat/completions", 405, "method_not_supported"),
        ("POST", "/v1/models", 405, "method_not_supported"),
        ("DELETE", f"/v1/models/{MODEL}", 405, "method_not_supported"),
        ("POST", "/", 405, "method_not_supported"),
        ("GET", "/docs", 404, "unknown_url"),
        ("POST", f"{ROUTE}/", 404, "unknown_url"),
        ("POST", "/v1/images", 404, "unknown_url"),
        ("GET", "/v1/%2e%2e/health", 404, "unknown_url"),
    ],
)
def test_unknown_urls_and_methods(http: httpx.Client, method: str, path: str, status: int, code: str) -> None:
    response = http.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert ("allow" in response.headers) == (status == 405)
