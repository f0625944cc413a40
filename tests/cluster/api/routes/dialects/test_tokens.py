"""Prompts as tokens and back."""

from typing import Any

import httpx
import pytest

from engine.errors import InvalidRequest
from engine.request import ChatPrompt
from tests.cluster.api.scripted import MAX_MODEL_LEN, MODEL, PROMPT_IDS, Running, Script

MESSAGES = [{"role": "user", "content": "hello"}]


def test_a_text_and_a_conversation(http: httpx.Client, server: Running) -> None:
    whole = {"count": len(PROMPT_IDS), "max_model_len": MAX_MODEL_LEN, "tokens": PROMPT_IDS, "token_strs": None}
    assert http.post("/tokenize", json={"model": MODEL, "prompt": "hello"}).json() == whole
    body = {"messages": MESSAGES, "add_generation_prompt": False, "chat_template_kwargs": {"x": 1}}
    texts = {"token_strs": [f"<{token_id}>" for token_id in PROMPT_IDS]}
    assert http.post("/tokenize", json=body | {"return_token_strs": True}).json() == whole | texts
    text, conversation = [request.prompt for request in server.service.generated]
    assert text == "hello"
    assert conversation == ChatPrompt(MESSAGES, variables={"x": 1, "add_generation_prompt": False})


def test_back(http: httpx.Client, server: Running) -> None:
    assert http.post("/detokenize", json={"tokens": [5, 6]}).json() == {"prompt": "<5><6>"}
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_settings_of_the_tokenizer(http: httpx.Client) -> None:
    whole = http.get("/tokenizer_info")
    assert (whole.status_code, whole.json()) == (200, {"eos_token": "<end>", "chat_template": "{{ messages }}"})
    assert http.get("/tokenizer_info", params={"model": MODEL}).json() == whole.json()
    unknown = http.get("/tokenizer_info", params={"model": "another"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": "x", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "x", "model": "another"}, "model"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "{{ x }}"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [5, 1000]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(
    http: httpx.Client, server: Running, path: str, body: dict[str, Any], param: str
) -> None:
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404 if param == "model" else 400, param)
    assert not server.service.generated


def test_only_the_engine_may_know_that_a_prompt_is_too_long(http: httpx.Client, server: Running) -> None:
    server.service.scripts["long"] = Script(error=InvalidRequest("70 tokens", code="context_length_exceeded"))
    answer = http.post("/tokenize", json={"prompt": "long"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_full_server_refuses(http: httpx.Client, server: Running) -> None:
    server.service.is_full = True
    assert [http.post(path, json={}).status_code for path in ("/tokenize", "/detokenize")] == [503, 503]
