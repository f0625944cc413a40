"""From a request's messages to what the chat template is given."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.api.models.model import Model
from cluster.api.requests.chat.conversation import conversation
from cluster.api.requests.protocol import ChatRequest
from engine.errors import InvalidRequest
from engine.request import ChatPrompt

MODEL = Model(name="m", max_model_len=64, vocab_size=1000, tool_format="hermes", reasoning_ids=(1, 2))
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def allowing(*tools: dict[str, Any], mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def converse(*messages: dict[str, Any], model: Model = MODEL, reasons: bool = True, **fields: Any) -> ChatPrompt:
    request = ChatRequest.model_validate({"model": "m", "messages": list(messages) or [USER]} | fields)
    return conversation(request, request.messages, model, reasons=reasons)


def test_messages_in_the_templates_form() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    made = converse(
        {"role": "developer", "content": "Be brief"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": "Three", "reasoning_content": "hm"},
        USER,
    )
    assert made.messages == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": "Three", "reasoning_content": "hm"},
        USER,
    ]


def test_tools_reach_the_template_unless_none_is_to_be_called() -> None:
    assert converse(tools=[TOOL]).tools == [TOOL]
    assert converse(tools=[TOOL], tool_choice="none").tools is None
    assert converse().tools is None


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_of_allowed_tools_the_template_gets_no_others(mode: str) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fgh"]
    assert converse(tools=tools, tool_choice=allowing(tools[2], tools[0], mode=mode)).tools == [tools[0], tools[2]]
    with pytest.raises(InvalidRequest, match='no tool "g"'):
        converse(tools=[tools[0], tools[2]], tool_choice=allowing(*tools, mode=mode))


def test_variables_are_the_requests_and_those_of_fields() -> None:
    assert converse(chat_template_kwargs={"a": 1}, reasoning_effort="low").variables == {
        "a": 1,
        "reasoning_effort": "low",
    }
    assert converse(reasoning_effort="none").variables["enable_thinking"] is False
    said = converse(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert said.variables["enable_thinking"] is True, "what is said of the template itself comes first"
    assert converse(reasons=False).variables["enable_thinking"] is False
    assert converse(add_generation_prompt=False).variables["add_generation_prompt"] is False


def test_the_last_message_is_continued() -> None:
    begun = {"role": "assistant", "content": "Once"}
    made = converse(USER, begun, continue_final_message=True, add_generation_prompt=False)
    assert (made.continues, made.variables["add_generation_prompt"]) == (True, False)
    assert not converse(USER, begun).continues


@pytest.mark.parametrize(
    ("messages", "fields", "words"),
    [
        ([USER], {"continue_final_message": True}, "no assistant's with a text"),
        ([USER, {"role": "assistant", "content": " "}], {"continue_final_message": True}, "no assistant's with a text"),
        ([USER], {"continue_final_message": True, "add_generation_prompt": True}, "exclude each other"),
        ([USER], {"tool_choice": "required"}, "tool_choice is for tools, and there are none"),
        *[
            ([USER], {"tools": tools, "tool_choice": allowing(TOOL)}, "tool_choice is for tools, and there are none")
            for tools in ([], None)
        ],
    ],
)
def test_what_contradicts_itself_is_refused(messages: list[dict[str, Any]], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        converse(*messages, **fields)


def test_a_model_without_tools_says_so() -> None:
    with pytest.raises(
        InvalidRequest, match=r"The model has no tools: .* none of the forms .* hermes .* and qwen3_coder"
    ) as refused:
        converse(tools=[TOOL], model=Model(name="m", max_model_len=64, vocab_size=1000))
    assert refused.value.param == "tools"


def test_names_that_the_models_format_would_cut_are_refused() -> None:
    function = {"name": "g", "parameters": {"properties": {"a>b": {}}}}
    tools = [TOOL, {"type": "function", "function": function}]
    coder = replace(MODEL, tool_format="qwen3_coder")
    with pytest.raises(InvalidRequest, match=r"name has no \">\" .* 'a>b' has") as refused:
        converse(tools=tools, model=coder)
    assert refused.value.param == "tools[1].function.parameters"
    assert converse(tools=tools).tools is not None
    assert converse(tools=tools, tool_choice=allowing(TOOL), model=coder).tools is not None
