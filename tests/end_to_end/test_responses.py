"""The Responses API by the real `openai` client: whole, streamed, going on from a stored response,
and while processes are killed.
"""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import jsonschema
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from tests.end_to_end.chaos.processes import GATEWAY, SERVING, find
from tests.end_to_end.conftest import Reference, Server
from tests.end_to_end.test_replica_lost import engine, wait_until_healthy
from tests.strict_types import parsed

DEADLINE_SECONDS = 300.0
SCHEMA = {
    "type": "object",
    "properties": {
        "words": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{3,9}$"}, "minItems": 20},
    },
    "required": ["words"],
    "additionalProperties": False,
}
OURS = ("system_fingerprint", "weights_version", "warnings", "store", "name")
SORT = {"type": "function", "name": "sort_words", "parameters": SCHEMA}
CALL: dict[str, Any] = {
    "model": "demo",
    "instructions": "Be brief.",
    "input": "Sort some words.",
    "tools": [SORT],
    "tool_choice": {"type": "function", "name": "sort_words"},
    "temperature": 1.2,
    "max_output_tokens": 400,
    "extra_body": {"seed": 3},
}
TEXT: dict[str, Any] = {
    "model": "demo",
    "input": "What is 3 + 4?",
    "max_output_tokens": 200,
    "extra_body": {"seed": 3, "ignore_eos": True},
}


def client_of(server: Server) -> openai.OpenAI:
    return server.client(timeout=DEADLINE_SECONDS)


def test_answers_as_chat_does(server: Server, reference: Reference, questions: list[str]) -> None:
    client = client_of(server)
    asked: dict[str, Any] = {"model": "demo", "input": questions[0], "temperature": 0, "max_output_tokens": 64}
    made = client.responses.create(**asked)
    text, reason = reference.chat(questions[0], 64)
    assert (made.output_text, made.status) == (text, "completed" if reason == "stop" else "incomplete")
    with client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text == text
    sent = httpx.post(f"{server.url}/v1/responses", json=asked, timeout=DEADLINE_SECONDS).json()
    assert parsed(Response, sent, *OURS).output_text == text


def test_a_form(server: Server) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9}}, "required": ["x"]}
    wanted = {"type": "json_schema", "name": "number", "schema": schema | {"additionalProperties": False}}
    made = client_of(server).responses.create(model="demo", input="A number?", text={"format": wanted})
    jsonschema.validate(json.loads(made.output_text), schema)


@pytest.mark.long  # else: tests/end_to_end/test_every_kind.py
def test_whole_and_streamed_answers_are_the_same_whoever_is_killed(server: Server) -> None:
    whole = client_of(server).responses.create(**CALL)
    jsonschema.validate(json.loads(whole.output[0].arguments), SCHEMA)
    undisturbed = streamed(server, {})
    assert undisturbed[-1] == shown(whole)
    pid = engine(server)["pid"]
    kills = {10: lambda: os.kill(find(SERVING)[0], signal.SIGKILL), 60: lambda: os.kill(pid, signal.SIGKILL)}
    assert streamed(server, kills) == undisturbed
    wait_until_healthy(server)


def streamed(server: Server, disturb: dict[int, Callable[[], object]]) -> list[Any]:
    """The kinds of the events without repetitions, and the whole answer. `disturb`: what is done
    after so many events.
    """
    kinds: list[Any] = []
    for number, event in enumerate(client_of(server).responses.create(**CALL, stream=True)):
        assert event.sequence_number == number
        parsed(ResponseStreamEvent, event.to_dict(), *OURS)
        kinds += [event.type] if kinds[-1:] != [event.type] else []
        disturb.get(number, lambda: None)()
    assert number > max(disturb, default=0)
    return [*kinds, shown(event.response)]


def shown(response: Response) -> Any:
    """What of an answer follows from its request."""
    unlike = {"id", "call_id"}
    output = [{name: value for name, value in item.to_dict().items() if name not in unlike} for item in response.output]
    return response.status, output, response.usage.output_tokens


def test_a_response_goes_on_from_one_whose_gateway_was_killed(server: Server) -> None:
    client = client_of(server)
    asked = TEXT | {"max_output_tokens": 12}
    first = client.responses.create(**asked)
    os.kill(find(GATEWAY)[0], signal.SIGKILL)
    wait_until_healthy(server)
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    second = client.responses.create(**asked | {"input": "And 5 + 6?"}, previous_response_id=first.id)
    sent = [{"role": "user", "content": TEXT["input"]}, *[item.to_dict() for item in first.output]]
    by_hand = client.responses.create(**asked | {"input": [*sent, {"role": "user", "content": "And 5 + 6?"}]})
    assert shown(second) == shown(by_hand)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_response_outlives_a_process_of_the_store(server: Server) -> None:
    client = client_of(server)
    made = client.responses.create(**TEXT | {"max_output_tokens": 12})
    patient = client.with_options(max_retries=10)  # 503 as long as the one that is left asks for the other
    os.kill(find("ray::StoreActor")[0], signal.SIGKILL)
    assert patient.responses.retrieve(made.id).to_dict() == made.to_dict()
    patient.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_lost_gateway_is_no_clean_end(server: Server) -> None:
    kinds = []
    with client_of(server) as client, pytest.raises((openai.APIError, httpx2.TransportError)):
        for event in client.responses.create(**TEXT, stream=True):
            kinds.append(event.type)
            if len(kinds) == 20:
                os.kill(find(GATEWAY)[0], signal.SIGKILL)
    assert len(kinds) >= 20 and not {"response.completed", "response.incomplete", "response.failed"} & set(kinds)
    wait_until_healthy(server)
