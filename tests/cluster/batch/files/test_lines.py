"""Requests and answers as lines."""

import json

import pytest

from cluster.batch.files.lines import (
    MAX_CUSTOM_ID,
    BadLine,
    Reply,
    answer_line,
    failure_line,
    is_answered,
    is_asked,
    read_line,
)

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "big": 10**30}}


def test_a_body_is_passed_on_as_it_is() -> None:
    text = b'{"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {"a":  1, "a": NaN_, "b": []}}'
    with pytest.raises(BadLine):
        read_line(text)
    whole = text.replace(b"NaN_", b"1e400")
    assert bytes(read_line(whole).body) == b'{"a":  1, "a": 1e400, "b": []}'


@pytest.mark.parametrize(
    ("changes", "code", "custom_id"),
    [
        ({"custom_id": None}, "invalid_line", None),
        ({"custom_id": "x" * (MAX_CUSTOM_ID + 1)}, "invalid_line", None),
        ({"method": "GET"}, "invalid_line", "a"),
        ({"url": "http://elsewhere/v1/x"}, "invalid_url", "a"),
        ({"url": "/v1/files"}, "invalid_url", "a"),
        ({"url": "/v1/batches/b/cancel"}, "invalid_url", "a"),
        ({"url": "/v1/../debug/trace"}, "invalid_url", "a"),
        ({"url": "/metrics"}, "invalid_url", "a"),
        ({"body": [1]}, "invalid_line", "a"),
        ({"body": {"stream": True}}, "stream_not_supported", "a"),
    ],
)
def test_what_is_not_a_request(changes: dict[str, object], code: str, custom_id: str | None) -> None:
    with pytest.raises(BadLine) as caught:
        read_line(json.dumps(LINE | changes).encode())
    assert (caught.value.code, caught.value.custom_id) == (code, custom_id)


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", b"[" * 100_000, b"null", b'{"custom_id": "\xff"}'])
def test_what_is_not_json(line: bytes) -> None:
    with pytest.raises(BadLine):
        read_line(line)


def test_answers() -> None:
    asked = read_line(json.dumps(LINE).encode())
    line = answer_line(asked, Reply(200, b'{"id": "cmpl-1", "x": 1.50}'))
    answer = json.loads(line)
    assert answer.pop("id").startswith("batch_req_")
    assert answer == {
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "cmpl-1", "body": {"id": "cmpl-1", "x": 1.5}},
        "error": None,
    }
    assert is_answered(line)
    refused = answer_line(asked, Reply(400, b'{"error": {}}', "req-7"))
    assert json.loads(refused)["response"]["request_id"] == "req-7" and not is_answered(refused)
    page = json.loads(answer_line(asked, Reply(408, b"<html>")))
    assert (page["response"], page["error"]["code"]) == (None, "invalid_answer")
    assert not is_answered(failure_line(BadLine("no", "a")))


def test_an_answer_is_one_line() -> None:
    asked = read_line(json.dumps(LINE).encode())
    assert b"\n" not in answer_line(asked, Reply(200, b'{\n "a": 1\n}\n'))


def test_urls() -> None:
    assert is_asked("/v1/embeddings") and is_asked("/v1/a/b")
    assert not is_asked("/v1/a?b") and not is_asked("/v1/a b") and not is_asked("/v1/é")
