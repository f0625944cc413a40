"""Items of the Responses API as messages of chat."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from cluster.api.dialects.responses_api.answer import (
    OutputCall,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
)
from cluster.api.dialects.responses_api.items import Item, Items
from cluster.api.dialects.responses_api.to_chat import as_messages, messages_of

ITEMS: TypeAdapter[list[Item]] = TypeAdapter(Items)
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
TEXT = {"type": "message", "role": "assistant", "content": "I look."}
CALL = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "rain"}]}
AS_CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return as_messages(ITEMS.validate_python(list(items)))


def test_a_text_is_a_message_of_the_user() -> None:
    assert as_messages("hello") == [{"role": "user", "content": "hello"}]


def test_neighbouring_items_of_the_assistant_are_one_message() -> None:
    whole = {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [AS_CALL, AS_CALL]}
    result = {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "rain"}]}
    assert messages(THOUGHT, TEXT, CALL, CALL, RESULT) == [whole, result]


@pytest.mark.parametrize(
    ("items", "roles"),
    [
        ([TEXT, TEXT], ["assistant", "assistant"]),  # a message has one content
        ([TEXT, THOUGHT], ["assistant", "assistant"]),  # reasoning comes before the content
        ([THOUGHT, THOUGHT], ["assistant", "assistant"]),
        ([CALL, TEXT], ["assistant", "assistant"]),  # nothing of a turn follows its calls
        ([CALL, THOUGHT], ["assistant", "assistant"]),
        ([CALL, RESULT, CALL], ["assistant", "tool", "assistant"]),
        ([{"role": "developer", "content": ""}, {"role": "user", "content": []}], ["developer", "user"]),
        ([{"type": "reasoning"}, TEXT], ["assistant"]),  # without content it says nothing
    ],
)
def test_what_begins_another_message(items: list[dict[str, Any]], roles: list[str]) -> None:
    made = messages(*items)
    assert [message["role"] for message in made] == roles
    assert all("content" in message for message in made)


def test_an_answer_goes_on_as_if_it_were_sent_back_without_a_call_that_was_cut_off() -> None:
    output = [
        OutputReasoning("rs_1_0", "completed", [ReasoningText("hm")]),
        OutputMessage("msg_1_1", "completed", [OutputText("I look.")]),
        OutputCall("fc_1_2", "completed", "a", "weather", "{}"),
        OutputCall("fc_1_3", "incomplete", "b", "weather", '{"ci'),
    ]
    (message,) = messages_of(output)
    assert message["tool_calls"] == [AS_CALL]
    assert (message["content"], message["reasoning_content"]) == ([{"type": "text", "text": "I look."}], "hm")
    assert messages_of(output[3:]) == []
