"""Tools that no client would describe, choices of others, and calls that nobody made."""

import json
from typing import Any

from hypothesis import strategies as st

from tests.cluster.api.test_fuzz import values

names = st.sampled_from(["add", "a.b-c_d", "x" * 128, "x" * 129, "", "<tool_call>", "é"]) | st.text(max_size=4)
leaves = st.sampled_from(
    [
        *({}, True, False, {"type": "string"}, {"type": ["null", "integer"]}, {"enum": []}, {"const": {"a": [1]}}),
        *({"$ref": "#"}, {"$ref": "#/properties/a"}, {"$ref": "#/$defs/none"}, {"$ref": "file:///etc/passwd"}),
        *({"type": "string", "pattern": "(a+)+$"}, {"type": "string", "pattern": "(?=a)("}, {"type": "nothing"}),
        *({"type": "string", "maxLength": 10**9}, {"type": "integer", "minimum": 10**400}, {"multipleOf": 0}),
        *({"type": "array", "minItems": 10**9}, {"not": {}}, {"enum": [f"</tool_call>{n}" for n in range(500)]}),
    ]
)


def _larger(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(names, schemas, max_size=4)
    return (
        st.builds(lambda of: {"type": "object", "properties": of, "required": [*of]}, properties)
        | st.builds(lambda of: {"type": "object", "properties": of, "additionalProperties": False}, properties)
        | st.builds(lambda of: {"type": "array", "items": of}, schemas)
        | st.builds(lambda of: {"anyOf": of}, st.lists(schemas, max_size=4))
        | st.builds(lambda of: {"allOf": of, "$defs": {"a": {"$ref": "#"}}}, st.lists(schemas, max_size=3))
    )


schemas = st.recursive(leaves, _larger, max_leaves=12)
functions = st.fixed_dictionaries({"name": names, "parameters": _larger(schemas) | schemas | values})
tools = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": functions}), min_size=1, max_size=3)
arguments = values.map(json.dumps) | st.text() | values
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.just("call_1") | st.text(),
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": names, "arguments": arguments}),
        }
    ),
    max_size=2,
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Of chat completions."""
    offered = draw(tools)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 2 + 3?"}]
    if draw(st.booleans()):
        messages.append({"role": "assistant", "content": draw(st.none() | st.text()), "tool_calls": draw(calls)})
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": draw(st.text())})
    name = draw(st.sampled_from([tool["function"]["name"] for tool in offered]) | names)
    named = {"type": "function", "function": {"name": name}}
    return {
        "messages": messages,
        "tools": offered,
        "tool_choice": draw(st.sampled_from(["auto", "none", "required", named, named])),
        "parallel_tool_calls": draw(st.none() | st.booleans()),
        "stream": draw(st.booleans()),
    }
