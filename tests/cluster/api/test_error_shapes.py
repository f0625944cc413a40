"""An error has the form of the API that its path belongs to."""

import json

import pytest

from cluster.api.error_shapes import anthropic_error, is_anthropic, is_models, openai_error


@pytest.mark.parametrize(
    ("path", "is_its"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages2", False),
        ("/v1/chat/completions", False),
    ],
)
def test_paths_of_anthropic(path: str, is_its: bool) -> None:
    assert is_anthropic(path) is is_its


def test_paths_of_models() -> None:
    paths = ("/v1/models", "/v1/models/demo", "/v1/models2", "/v1/messages")
    assert [is_models(path) for path in paths] == [True, True, False, False]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_value", "invalid_request_error"),
        (401, "invalid_api_key", "authentication_error"),
        (413, "request_too_large", "invalid_request_error"),
        (429, "rate_limit_exceeded", "rate_limit_error"),
        (500, "step_failed", "api_error"),
        (503, "engine_restarting", "api_error"),
        (503, "server_overloaded", "overloaded_error"),
        (504, "deadline_exceeded", "timeout_error"),
    ],
)
def test_types_of_anthropic(status: int, code: str, kind: str) -> None:
    body = json.loads(anthropic_error("no", status, param="a.b", code=code))
    assert body["error"] == {"type": kind, "message": "no", "param": "a.b", "code": code}
    assert body["type"] == "error"


def test_the_form_of_openai() -> None:
    error = {"message": "no", "type": "server_error", "param": None, "code": "x"}
    assert json.loads(openai_error("no", "server_error", param=None, code="x")) == {"error": error}
