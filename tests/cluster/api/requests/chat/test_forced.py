"""When an answer has to be a call: the form it has then."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.api.models.model import Model
from cluster.api.requests.chat.forced import forced_calls
from cluster.api.requests.protocol import ChatRequest
from engine.errors import InvalidRequest
from engine.structured_outputs import StructuredOutputs

MODEL = Model(name="m", max_model_len=64, vocab_size=1000, tool_format="hermes")
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "now")]
NOW = {"type": "function", "function": {"name": "now"}}


def allowing(*names: str, mode: str = "required") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def forced(model: Model = MODEL, **fields: Any) -> StructuredOutputs | None:
    request = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields)
    return forced_calls(request, model).get("structured_outputs")


def test_only_a_choice_that_forces_gives_a_form() -> None:
    assert forced(tools=TOOLS) is forced(tools=TOOLS, tool_choice="auto") is None
    required = forced(tools=TOOLS, tool_choice="required")
    assert required is not None
    assert (required.kind, required.param) == ("grammar", "tools")
    assert "weather" in required.text and "now" in required.text
    named = forced(tools=TOOLS, tool_choice=NOW)
    assert named is not None
    assert "now" in named.text and "weather" not in named.text


def test_only_a_required_call_may_be_one_of_several() -> None:
    several = forced(tools=TOOLS[1:], tool_choice="required")
    one = forced(tools=TOOLS[1:], tool_choice="required", parallel_tool_calls=False)
    assert several != one == forced(tools=TOOLS[1:], tool_choice=NOW)


def test_of_allowed_tools_any_may_be_the_call() -> None:
    assert forced(tools=TOOLS, tool_choice=allowing("now", mode="auto")) is None
    assert forced(tools=TOOLS, tool_choice=allowing("now")) == forced(tools=TOOLS[1:], tool_choice="required")
    assert forced(tools=TOOLS, tool_choice=allowing("now", "weather")) == forced(tools=TOOLS, tool_choice="required")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": TOOLS, "tool_choice": allowing("now", "sun", "rain")}, "tool_choice", 'There is no tool "rain"'),
        ({"tools": TOOLS[:1], "tool_choice": NOW}, "tool_choice", 'There is no tool "now"'),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "There are no tools"),
        (
            {"tools": TOOLS, "tool_choice": "required", "structured_outputs": {"json_object": True}},
            "structured_outputs.json_object",
            "two forms of one answer",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": "required",
                "response_format": {"type": "text"},
                "guided_regex": "a",
            },
            "guided_regex",
            "two forms of one answer",
        ),
    ],
)
def test_what_cannot_be_forced_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        forced(**fields)
    assert refused.value.param == param


def test_a_call_comes_before_the_form_of_a_text() -> None:
    """As in OpenAI's API: `instructor` asks for both."""
    form = {"type": "json_object"}
    assert forced(tools=TOOLS, tool_choice="required", response_format=form) == forced(
        tools=TOOLS, tool_choice="required"
    )


def test_a_model_without_tools_forces_none() -> None:
    """Its tools are refused before."""
    assert forced(Model(name="m", max_model_len=64, vocab_size=1000), tools=TOOLS, tool_choice="required") is None


def test_a_call_whose_arguments_could_be_wrong_is_not_forced() -> None:
    parameters = {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    tools = [*TOOLS, {"type": "function", "function": {"name": "either", "parameters": parameters}}]
    coder = replace(MODEL, tool_format="qwen3_coder")
    with pytest.raises(InvalidRequest, match="anyOf is not enforced") as refused:
        forced(coder, tools=tools, tool_choice="required")
    assert refused.value.param == "tools[2].function.parameters"
    assert forced(coder, tools=tools, tool_choice="auto") is None
    assert forced(coder, tools=tools, tool_choice=NOW) is not None
    assert forced(tools=tools, tool_choice="required") is not None, "JSON is held to the schema"
