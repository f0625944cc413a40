"""Prompts as tokens and back, by the engine replicas; another answers for one that is killed."""

import os
import signal
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from tests.end_to_end.conftest import Server
from tests.end_to_end.test_replica_lost import DEADLINE_SECONDS, engine, wait_until_healthy

TEXT = "What is 3 + 4? Ünïcödé \N{GRINNING FACE} <|im_end|>"
MESSAGES = [{"role": "user", "content": TEXT + "."}]


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=DEADLINE_SECONDS)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_there_and_back(server: Server) -> None:
    told = post(server, "/tokenize", {"prompt": TEXT, "return_token_strs": True})
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) and told["max_model_len"] == 2048
    assert post(server, "/detokenize", {"tokens": told["tokens"]}) == {"prompt": TEXT}
    conversation = post(server, "/tokenize", {"messages": MESSAGES})
    answer = server.client().chat.completions.create(model="demo", messages=MESSAGES, max_tokens=1)
    assert conversation["count"] == answer.usage.prompt_tokens
    shorter = post(server, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})
    assert conversation["tokens"][: shorter["count"]] == shorter["tokens"] != conversation["tokens"]


def test_settings_are_those_of_the_checkpoint(server: Server) -> None:
    answer = httpx.get(f"{server.url}/tokenizer_info", timeout=DEADLINE_SECONDS)
    own = AutoTokenizer.from_pretrained(server.args["engine"]["tokenizer"])
    told = answer.json()
    assert (told["eos_token"], told["chat_template"]) == (own.eos_token, own.chat_template)


def test_a_text_beyond_the_context_is_refused(server: Server) -> None:
    answer = httpx.post(f"{server.url}/tokenize", json={"prompt": "word " * 3000}, timeout=DEADLINE_SECONDS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.long
def test_another_replica_answers_for_one_that_is_killed(server: Server) -> None:
    told = post(server, "/tokenize", {"prompt": TEXT})
    os.kill(engine(server)["pid"], signal.SIGKILL)
    assert post(server, "/tokenize", {"prompt": TEXT}) == told
    wait_until_healthy(server)
