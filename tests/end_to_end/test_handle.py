"""Another Ray job, which cannot import any package of ours, calls the application through its
handle.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.end_to_end.conftest import Reference, Server

JOB = """
import importlib.abc, json, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cluster", "engine", "parallel", "ops"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import ray
from ray import serve

address, question = sys.argv[1:]
ray.init(address, log_to_driver=False, logging_level="ERROR")
handle = serve.get_app_handle("squadron")
messages = [{"role": "user", "content": question}]
asked = {"messages": messages, "temperature": 0, "max_tokens": 64}
chat = handle.chat.remote(asked).result()
stream = list(handle.options(stream=True).stream.remote(asked))
two = {"prompt": "once upon", "max_tokens": 4, "n": 2, "seed": 1, "logprobs": 1, "ignore_eos": True}
both = handle.generate.remote(two).result()
wrong = handle.generate.remote({"prompt": "once", "max_token": 4}).result()
wrong_in_stream = list(handle.options(stream=True).stream.remote({"prompt": "once", "max_tokens": 10**6}))

route = "/v1/chat/completions"
body = asked | {"model": "demo", "return_token_ids": True}
whole = handle.post.remote(route, body).result()
events = list(handle.options(stream=True).events.remote(route, body | {"stream": True}))
refused = [
    handle.post.remote(route, {"messages": messages, **wrong}).result()
    for wrong in (
        {"tool_choice": "required"},
        {"priority": -5},
        {"messages": [{"role": "tool", "content": "4"}]},
        {"n": 0},
    )
]
late = list(
    handle.options(stream=True).events.remote(
        "/v1/completions",
        {"prompt": "once", "max_tokens": 1900, "ignore_eos": True, "stream": True},
        {"X-Request-Timeout": "0.5"},
    )
)

endless = handle.options(stream=True).stream.remote(
    {"prompt": "once", "max_tokens": 1900, "ignore_eos": True, "request_id": "endless"}
)
refusals = []
for application, method, arguments in [
    (handle, "drain", [None, 0.0]),
    (serve.get_deployment_handle("EngineDeployment", "squadron"), "stop", [None]),
]:
    try:
        application.broadcast(method, *arguments).results(timeout_s=30)
    except Exception as error:
        refusals.append(str(error))

reasons = []
for number, answer in enumerate(endless):
    if number == 3:
        handle.abort.remote("endless").result()
    reasons.append(answer["outputs"][0]["finish_reason"])
print(json.dumps([chat, stream, both, wrong, wrong_in_stream, reasons[-1], refusals, whole, events, refused, late]))
"""


@pytest.fixture(scope="module")
def answers(server: Server, questions: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder: Path = tmp_path_factory.mktemp("another-job")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | server.ray.environment
    command = [sys.executable, "-c", JOB, server.ray.address, questions[2]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_chat(answers: list[Any], reference: Reference, questions: list[str]) -> None:
    choice = answers[0]["outputs"][0]
    assert (choice["text"], choice["finish_reason"]) == reference.chat(questions[2], 64)
    assert answers[0]["error"] is None and answers[0]["finished"]


def test_stream_adds_up_to_the_same(answers: list[Any]) -> None:
    whole, deltas = answers[0]["outputs"][0], [answer["outputs"][0] for answer in answers[1]]
    assert "".join(delta["text"] for delta in deltas) == whole["text"]
    assert [token_id for delta in deltas for token_id in delta["token_ids"]] == whole["token_ids"]
    assert [bool(answer["prompt_token_ids"]) for answer in answers[1]] == [True] + [False] * (len(deltas) - 1)
    assert answers[1][0]["prompt_token_ids"] == answers[0]["prompt_token_ids"]
    assert [answer["finished"] for answer in answers[1]] == [False] * (len(deltas) - 1) + [True]
    counts = [sum(len(delta["token_ids"]) for delta in deltas[:number]) for number in range(len(deltas))]
    assert [delta["first_index"] for delta in deltas] == counts


def test_several_choices_with_logprobs(answers: list[Any]) -> None:
    outputs = answers[2]["outputs"]
    assert [(choice["index"], len(choice["token_ids"]), choice["finish_reason"]) for choice in outputs] == [
        (0, 4, "length"),
        (1, 4, "length"),
    ]
    for choice in outputs:
        for token_id, position in zip(choice["token_ids"], choice["logprobs"], strict=True):
            logprob, rank, _ = position[str(token_id)]  # JSON made the ids strings
            assert logprob <= 0 and rank >= 1


def test_errors_are_values(answers: list[Any]) -> None:
    assert answers[3]["error"] == {
        "message": "unknown field 'max_token'; did you mean 'max_tokens'?",
        "type": "invalid_request_error",
        "param": "max_token",
        "code": "unknown_parameter",
    }
    (only,) = answers[4]
    assert only["finished"] and only["error"]["code"] == "context_length_exceeded"


def test_abort_by_request_id(answers: list[Any]) -> None:
    assert answers[5] == "abort"


def test_a_stranger_ends_neither_gateways_nor_engines(answers: list[Any], server: Server) -> None:
    assert ["NotOwner" in refusal for refusal in answers[6]] == [True, True], answers[6]
    assert server.handle.generate.remote({"prompt": "once", "max_tokens": 2}).result()["error"] is None


def test_a_body_of_the_http_api_has_its_answer(answers: list[Any], server: Server, questions: list[str]) -> None:
    chat, whole, events = answers[0], answers[7], answers[8]
    body = {"model": "demo", "messages": [{"role": "user", "content": questions[2]}], "temperature": 0}
    by_http = httpx.post(
        f"{server.url}/v1/chat/completions", json=body | {"max_tokens": 64, "return_token_ids": True}, timeout=60
    ).json()
    of_a_request = ("id", "created", "usage")  # the usage tells how much of the prompt was cached
    assert [{name: value for name, value in each.items() if name not in of_a_request} for each in (whole, by_http)] == [
        {name: value for name, value in whole.items() if name not in of_a_request}
    ] * 2
    (choice,) = whole["choices"]
    assert whole["prompt_token_ids"] == events[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    assert choice["token_ids"] == chat["outputs"][0]["token_ids"]
    parts = [event["choices"][0] for event in events]
    assert [token_id for part in parts for token_id in part.get("token_ids", ())] == choice["token_ids"]
    assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
    assert parts[-1]["finish_reason"] == choice["finish_reason"]


def test_what_http_refuses(answers: list[Any]) -> None:
    told = [(answer["error"]["code"], answer["error"]["param"]) for answer in answers[9]]
    assert told == [
        ("invalid_value", "tool_choice"),
        ("integer_below_min_value", "priority"),
        ("missing_required_parameter", "messages[0].tool_call_id"),
        ("integer_below_min_value", "n"),
    ]


def test_a_stream_that_fails_ends_with_its_error(answers: list[Any]) -> None:
    *chunks, last = answers[10]
    assert last["error"]["code"] == "deadline_exceeded"
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
