"""Tools and their calls in a request: types and limits, and what of them reaches the chat
template.
"""

import json
from collections import Counter
from typing import Annotated, Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from cluster.api.requests.fields import AtMost, as_brief_json, fail

MAX_TOOLS = 128
MAX_CALLS = 128  # of a message
_STRICT = ConfigDict(strict=True, frozen=True, extra="allow")

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    try:
        Draft202012Validator.check_schema(value)
    except (SchemaError, RecursionError) as error:
        why = f"{error.json_path[2:]}: {error.message}" if isinstance(error, SchemaError) else "it is too deep"
        fail("invalid_value", f"This is no JSON schema: {why[:300]}")
    return value


def _object_schema(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is not None and value.get("type", "object") != "object":
        fail("invalid_value", "A function's parameters are an object")
    return value and _schema(value)


def _tool_type(value: str) -> str:
    if value != "function":
        fail("unsupported_value", 'The type of a tool is "function"')
    return value


_ToolType = Annotated[str, AfterValidator(_tool_type), WithJsonSchema({"enum": ["function"]})]


class Function(BaseModel):
    model_config = _STRICT

    name: Name
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, AfterValidator(_object_schema)] = None
    strict: bool | None = None


class Tool(BaseModel):
    model_config = _STRICT

    type: _ToolType
    function: Function


def _distinct(tools: list[Tool] | None) -> list[Tool] | None:
    for name, count in Counter(tool.function.name for tool in tools or ()).items():
        if count > 1:
            fail("invalid_value", f'{count} tools have the name "{name}"')
    return tools


Tools = Annotated[list[Tool], AtMost(MAX_TOOLS), AfterValidator(_distinct)]


class _NamedFunction(BaseModel):
    model_config = _STRICT

    name: Name


class NamedTool(BaseModel):
    """The tool that has to be called."""

    model_config = _STRICT

    type: _ToolType
    function: _NamedFunction


_NAMED, _CHOICE = "<named>", "<choice>"
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(_CHOICE)] | Annotated[NamedTool, Tag(_NAMED)],
    Discriminator(lambda value: _NAMED if isinstance(value, dict) else _CHOICE),
]


class CalledFunction(BaseModel):
    model_config = _STRICT

    name: Annotated[str, Field(min_length=1)]
    arguments: str  # JSON text of an object

    def as_value(self) -> dict[str, Any]:
        """For chat templates, which want the arguments as an object."""
        return {"name": self.name, "arguments": json.loads(self.arguments or "{}")}


def _arguments(value: CalledFunction) -> CalledFunction:
    try:
        arguments = json.loads(value.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        fail("invalid_value", f"arguments hold no JSON object: {as_brief_json(value.arguments)}")
    return value


class ToolCall(BaseModel):
    model_config = _STRICT

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: Annotated[CalledFunction, AfterValidator(_arguments)]

    def as_value(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.type, "function": self.function.as_value()}


ToolCalls = Annotated[list[ToolCall], AtMost(MAX_CALLS)]
