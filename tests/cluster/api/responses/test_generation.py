"""What the engine says of "the prompt" is said of the field that the caller knows."""

import httpx
import pytest

from engine.errors import InvalidRequest
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
