"""What the engine says of "the prompt" is said of the field that the caller knows."""

import httpx
import pytest

from cluster.api.errors import request_failed
from engine.errors import NO_TOKEN_LEFT, STEP_FAILED, TOKEN_TOO_COMPLEX, InvalidRequest
from tests.cluster.api.scripted import MODEL, Script


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "long"}]}, "messages"),
        ("/v1/completions", {"prompt": "long"}, "prompt"),
        ("/v1/completions", {"prompt": ["fine", "long"]}, "prompt[1]"),
    ],
)
def test_a_prompt_too_long_names_the_callers_field(server, path, body, param):
    error = InvalidRequest("too long", param="prompt", code="context_length_exceeded")
    server.service.scripts["long"] = Script(texts=(), error=error)
    answer = httpx.post(f"{server.url}{path}", json=body | {"model": MODEL})
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, "context_length_exceeded")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (NO_TOKEN_LEFT, 400, "invalid_request_error"),
        (TOKEN_TOO_COMPLEX, 400, "invalid_request_error"),
        (STEP_FAILED, 500, "server_error"),
        (None, 500, "server_error"),
    ],
)
def test_whose_fault_an_answers_end_is(code, status, kind):
    told = request_failed("so it is", code)
    assert (told.status, told.type, told.code) == (status, kind, code or "generation_failed")
