"""Calls of tools by the real `openai` client: forced ones whole, streamed, and while processes are
killed; and those that the demo model makes because they are right.
"""

import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from tests.end_to_end.chaos.processes import SERVING, find
from tests.end_to_end.conftest import DEMO, Server
from tests.end_to_end.test_replica_lost import engine, wait_until_healthy

DEADLINE_SECONDS = 300.0
WORD = {"type": "string", "pattern": "^[a-z]{3,9}$"}
SCHEMA = {
    "type": "object",
    "properties": {
        "words": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]{3,9}$"},
            "minItems": 60,
            "maxItems": 80,
        },
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["words", "count"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "sort_words", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
ASKED: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Sort some words."}],
    "tools": [TOOL, NOW],
    "tool_choice": {"type": "function", "function": {"name": "sort_words"}},
    "temperature": 1.2,
    "seed": 3,
    "max_tokens": 1200,
}


@pytest.mark.long  # else: tests/end_to_end/test_every_kind.py
def test_whole_and_streamed_calls_are_the_same_whoever_is_killed(server: Server) -> None:
    choice = server.client(timeout=DEADLINE_SECONDS).chat.completions.create(**ASKED).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    [call] = choice.message.tool_calls
    assert call.function.name == "sort_words"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)

    undisturbed = streamed(server, lambda: None)
    assert undisturbed == call.function.arguments
    assert streamed(server, lambda: os.kill(find(SERVING)[0], signal.SIGKILL)) == undisturbed
    pid = engine(server)["pid"]
    assert streamed(server, lambda: os.kill(pid, signal.SIGKILL)) == undisturbed
    wait_until_healthy(server)


def streamed(server: Server, disturb: Callable[[], object]) -> str:
    """The arguments; `disturb` has its cause once they have begun."""
    arguments, number = "", 0
    disturbing = threading.Thread(target=disturb)
    for chunk in server.client(timeout=DEADLINE_SECONDS).chat.completions.create(**ASKED, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            arguments += call.function.arguments or ""
            number += 1
            if number == 20:
                disturbing.start()
    disturbing.join()
    assert chunk.choices[0].finish_reason == "tool_calls"
    return arguments


def test_a_conversation_goes_on_with_a_tools_answer(server: Server) -> None:
    client = server.client(timeout=DEADLINE_SECONDS)
    asked = ASKED | {"tools": [NOW], "tool_choice": "required", "parallel_tool_calls": False}
    message = client.chat.completions.create(**asked).choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("now", "{}")
    answer = {"role": "tool", "tool_call_id": call.id, "content": "12:00"}
    messages = [*ASKED["messages"], message, answer]
    rest = client.chat.completions.create(**ASKED | {"messages": messages, "tool_choice": "auto", "max_tokens": 8})
    assert rest.choices[0].finish_reason in ("stop", "length")
    assert rest.choices[0].message.tool_calls is None


def test_a_tool_is_called_where_it_is_of_use(server: Server) -> None:
    client = server.client(timeout=DEADLINE_SECONDS)
    asked: dict[str, Any] = {"model": "demo", "tools": offered(), "temperature": 0}
    messages: list[Any] = [{"role": "user", "content": "What is 57 + 68?"}]
    choice = client.chat.completions.create(messages=messages, **asked).choices[0]
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 57, "b": 68})

    pieces = [
        chunk.choices[0].delta.tool_calls[0].function.arguments
        for chunk in client.chat.completions.create(messages=messages, stream=True, **asked)
        if chunk.choices[0].delta.tool_calls
    ]
    assert "".join(pieces) == call.function.arguments and len(pieces) > 5

    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "125"}]
    assert said(client.chat.completions.create(messages=messages, **asked)) == "The sum is 125."
    messages = [{"role": "user", "content": 'Spell "banana".'}]
    assert said(client.chat.completions.create(messages=messages, **asked)) == "b-a-n-a-n-a"


def test_one_question_may_take_two_calls(server: Server) -> None:
    client = server.client(timeout=DEADLINE_SECONDS)
    messages: Any = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]
    asked: dict[str, Any] = {"model": "demo", "tools": offered(), "temperature": 0, "messages": messages}
    both = client.chat.completions.create(**asked).choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in both] == [{"city": "Paris"}, {"city": "Rome"}]
    [first] = client.chat.completions.create(**asked, parallel_tool_calls=False).choices[0].message.tool_calls
    assert json.loads(first.function.arguments) == {"city": "Paris"}

    message = {"role": "assistant", "tool_calls": [call.model_dump() for call in both]}
    results = zip(both, ("sunny, 21 degrees", "rainy"), strict=True)
    messages += [message, *({"role": "tool", "tool_call_id": call.id, "content": told} for call, told in results)]
    assert said(client.chat.completions.create(**asked)) == "It is sunny, 21 degrees. It is rainy."


def offered() -> list[Any]:
    """The tools that the demo model has learned."""
    records = [json.loads(line) for line in (DEMO / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    return max((record.get("tools", []) for record in records), key=len)


def said(answer: Any) -> str:
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].message.tool_calls is None
    return answer.choices[0].message.content
