"""Errors that HAProxy answers itself."""

import json

import pytest

from cluster.ingress.answer import Answer

FULL = Answer("503 Service Unavailable", "server_overloaded", "The server is full", 7)
GONE = Answer("400 Bad Request", "invalid_value", "Not so")


@pytest.mark.parametrize(("answer", "kind"), [(FULL, "server_error"), (GONE, "invalid_request_error")])
def test_a_file_is_a_whole_answer(answer: Answer, kind: str) -> None:
    head, _, body = answer.file().partition("\r\n\r\n")
    status, *headers = head.split("\r\n")
    assert status == f"HTTP/1.1 {answer.status}"
    named = dict(line.split(": ") for line in headers)
    assert int(named["content-length"]) == len(body.encode())
    assert named.get("retry-after") == (None if answer.retry_after is None else str(answer.retry_after))
    error = {"message": answer.message, "type": kind, "param": None, "code": answer.code}
    assert json.loads(body) == {"error": error}


def test_a_rule_has_the_body_in_single_quotes() -> None:
    assert "'" not in FULL.body and "'" not in FULL.anthropic_body
    start, body, end = FULL.rule().split("'")
    assert start == "http-request return status 503 content-type application/json string "
    assert (body, end) == (FULL.body, " hdr retry-after 7")
    assert GONE.rule().endswith("'")
    assert json.loads(FULL.anthropic_body)["error"]["type"] == "overloaded_error"
