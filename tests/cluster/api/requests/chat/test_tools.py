"""What is taken for a tool, and how a call of the past reaches the chat template."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cluster.api.requests.chat.tools import (
    MAX_ARGUMENTS,
    MAX_SUBSCHEMAS,
    MAX_TOOLS,
    AllowedTools,
    NamedTool,
    PastCall,
    ToolCalls,
    ToolChoice,
    Tools,
    chosen,
    must_call,
)
from engine.errors import InvalidRequest

TOOLS, CHOICE, CALLS = (TypeAdapter[Any](kind) for kind in (Tools, ToolChoice, ToolCalls))


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "function": {"name": "f", "arguments": arguments}}


def complaint(adapter: TypeAdapter[Any], value: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        adapter.validate_python(value)
    return str(refused.value)


def test_tools_are_taken_with_what_else_they_say() -> None:
    (made,) = TOOLS.validate_python([tool(parameters={"type": "object"}, strict=True, future=1)])
    assert (made.function.name, made.function.strict, made.function.model_extra) == ("f", True, {"future": 1})
    assert TOOLS.validate_python([tool("a"), tool("b")])[1].function.parameters is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([tool("two words")], "should match pattern"),
        ([{"type": "retrieval"}], 'The type of a tool is "function"'),
        ([tool(parameters={"type": "array"})], "A function's parameters are an object"),
        ([tool(parameters={"type": "object", "properties": 5})], "This is no JSON schema: properties"),
        ([tool("a"), tool("b"), tool("a")], '2 tools have the name "a"'),
        ([tool(f"f{number}") for number in range(MAX_TOOLS + 1)], f"{MAX_TOOLS}"),
        ([tool(parameters={"enum": [[] for _ in range(MAX_SUBSCHEMAS)]})], f"more than {MAX_SUBSCHEMAS} objects"),
        ("f", "valid list"),
    ],
)
def test_what_is_no_tool_is_refused(value: Any, words: str) -> None:
    assert words in complaint(TOOLS, value)


@pytest.mark.parametrize(
    ("draft", "schema"),
    [
        ("http://json-schema.org/draft-04/schema#", {"type": "number", "minimum": 0, "exclusiveMinimum": True}),
        ("http://json-schema.org/draft-07/schema#", {"type": "array", "items": [{"type": "string"}, {}]}),
        ("https://json-schema.org/draft/2019-09/schema", {"items": [{"type": "string"}], "additionalItems": False}),
    ],
)
def test_a_schema_is_one_of_the_draft_that_it_names(draft: str, schema: dict[str, Any]) -> None:
    parameters = {"$schema": draft, "type": "object", "properties": {"x": schema}}
    (made,) = TOOLS.validate_python([tool(parameters=parameters)])
    assert made.function.parameters == parameters
    newest = parameters | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    assert "This is no JSON schema: properties.x" in complaint(TOOLS, [tool(parameters=newest)])
    wrong = parameters | {"properties": {"x": {"minimum": "0"}}}
    assert "This is no JSON schema: properties.x.minimum" in complaint(TOOLS, [tool(parameters=wrong)])


def test_a_choice_is_a_word_or_names_a_tool() -> None:
    assert [CHOICE.validate_python(word) for word in ("none", "auto", "required")] == ["none", "auto", "required"]
    named = CHOICE.validate_python(tool("g"))
    assert isinstance(named, NamedTool)
    assert named.function.name == "g"
    assert "'none', 'auto' or 'required'" in complaint(CHOICE, "always")


def test_a_choice_may_be_of_several_tools() -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": name}} for name in ("g", "h")]}
    choice = CHOICE.validate_python({"type": "allowed_tools", "allowed_tools": allowed})
    assert isinstance(choice, AllowedTools) and not must_call(choice)
    tools = TOOLS.validate_python([tool("f"), tool("g"), tool("h")])
    assert [each.function.name for each in chosen(tools, choice)] == ["g", "h"]
    with pytest.raises(InvalidRequest, match='There is no tool "h"'):
        chosen(tools[:2], choice)


def test_templates_get_a_calls_arguments_as_an_object() -> None:
    (made,) = CALLS.validate_python([call('{"x": [1, 2]}')])
    assert made.as_value() == {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, 2]}}}
    assert PastCall.model_validate(call("")).function.as_value()["arguments"] == {}


@pytest.mark.parametrize(
    "written",
    [
        *('{"x": ', '{"city": "Pa', "Oslo", '{"x": ' + "[" * 5000),
        *("[1]", "5", '{"x": 1, "x": 2}', '{"x": NaN}', '{"x": 1e999}', r'{"x": "\ud83d"}'),
    ],
)
def test_arguments_that_are_no_object_are_taken_as_they_are(written: str) -> None:
    (made,) = CALLS.validate_python([call(written)])
    assert made.as_value()["function"] == {"name": "f", "arguments": written}


def test_arguments_may_hold_so_many_values_and_any_text() -> None:
    text = "1," * (MAX_ARGUMENTS + 1)
    assert complaint(CALLS, [call(f'{{"x": [{text}1]}}')]).count(f"arguments hold more than {MAX_ARGUMENTS} values")
    (made,) = CALLS.validate_python([call(f'{{"x": "{text}"}}')])
    assert made.as_value()["function"]["arguments"] == {"x": text}
