"""Tools and tool calls in a request: types, limits, and their form for the chat template."""

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import SchemaError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from cluster.api.errors import ApiError
from cluster.api.requests.fields import AtMost, fail
from cluster.api.requests.parse import outside_strings, parse_object
from engine.errors import InvalidRequest

MAX_TOOLS = 128
MAX_CALLS = 128  # of a message
MAX_ARGUMENTS = 1 << 14  # values in a call's
MAX_SUBSCHEMAS = 4096  # objects and lists in all schemas
_STRICT = ConfigDict(strict=True, frozen=True, extra="allow")
# By `$schema`, without what is around the name; of any other it is the newest.
_DRAFTS = {
    "draft-04/schema": Draft4Validator,
    "draft-06/schema": Draft6Validator,
    "draft-07/schema": Draft7Validator,
    "draft/2019-09/schema": Draft201909Validator,
}

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]  # as long as Anthropic's


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    if (complaint := _complaint(json.dumps(value))) is not None:
        fail("invalid_value", f"This is no JSON schema: {complaint}")
    return value


@functools.lru_cache(MAX_TOOLS * 8)  # clients send the same tools again and again
def _complaint(schema: str) -> str | None:
    """What is wrong with it, by the draft that it names. Formats are not checked: expressions are
    not Python's.
    """
    value = json.loads(schema)
    draft = str(value.get("$schema")).rpartition("json-schema.org/")[2].removesuffix("#")
    try:
        _DRAFTS.get(draft, Draft202012Validator).check_schema(value, format_checker=None)
    except SchemaError as error:
        return f"{error.json_path[2:]}: {error.message}"[:300]
    except RecursionError:
        return "it is too deep"
    return None


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


def _few(value: Any) -> Any:
    """Before they are looked at, which takes a quarter of a millisecond each."""
    count = 0
    level: list[dict[str, Any] | list[Any]] = [value] if isinstance(value, list) else []
    while level and count <= MAX_SUBSCHEMAS:
        below = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in below if isinstance(item, dict | list)]
        count += len(level)
    if count > MAX_SUBSCHEMAS:
        fail("array_above_max_length", f"The tools have more than {MAX_SUBSCHEMAS} objects and lists")
    return value


def _distinct(tools: list[Tool] | None) -> list[Tool] | None:
    for name, count in Counter(tool.function.name for tool in tools or ()).items():
        if count > 1:
            fail("invalid_value", f'{count} tools have the name "{name}"')
    return tools


Tools = Annotated[list[Tool], BeforeValidator(_few), AtMost(MAX_TOOLS), AfterValidator(_distinct)]


class _NamedFunction(BaseModel):
    model_config = _STRICT

    name: Name


class NamedTool(BaseModel):
    """The tool that has to be called."""

    model_config = _STRICT

    type: _ToolType
    function: _NamedFunction


class _Allowed(BaseModel):
    model_config = _STRICT

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1), AtMost(MAX_TOOLS)]


class AllowedTools(BaseModel):
    """Those of the tools that may be called."""

    model_config = _STRICT

    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


WORD, NAMED, ALLOWED = "<word>", "<named>", "<allowed>"


def choice_kind(value: Any) -> str:
    """The tag of a tool choice."""
    match value:
        case {"type": "allowed_tools"}:
            return ALLOWED
        case dict():
            return NAMED
        case _:
            return WORD


ChoiceWord = Literal["none", "auto", "required"]
ToolChoice = Annotated[
    Annotated[ChoiceWord, Tag(WORD)] | Annotated[NamedTool, Tag(NAMED)] | Annotated[AllowedTools, Tag(ALLOWED)],
    Discriminator(choice_kind),
]


def must_call(choice: str | NamedTool | AllowedTools | None) -> bool:
    """Whether the answer has to be a call."""
    if isinstance(choice, AllowedTools):
        return choice.allowed_tools.mode == "required"
    return choice == "required" or isinstance(choice, NamedTool)


def chosen(tools: Sequence[Tool], choice: NamedTool | AllowedTools) -> list[Tool]:
    """Those that the choice names; raises InvalidRequest if one is not among the tools."""
    named = [choice] if isinstance(choice, NamedTool) else choice.allowed_tools.tools
    names = {each.function.name for each in named}
    for name in sorted(names - {tool.function.name for tool in tools}):
        message = f'There is no tool "{name}" among tools that could be called'
        raise InvalidRequest(message, param="tool_choice")
    return [tool for tool in tools if tool.function.name in names]


def refuse_parameters(
    tools: Sequence[Tool], asked: Sequence[Tool], problem: Callable[[Mapping[str, Any]], str | None]
) -> None:
    """Raises InvalidRequest if there is a problem with those of one that is asked for."""
    for number, tool in enumerate(tools):
        complaint = problem(tool.function.parameters or {}) if tool in asked else None
        if complaint is not None:
            raise InvalidRequest(complaint, param=f"tools[{number}].function.parameters")


class PastFunction(BaseModel):
    model_config = _STRICT

    name: Annotated[str, Field(min_length=1)]
    arguments: str  # JSON text of an object, as far as the model has written one

    def as_value(self) -> dict[str, Any]:
        """For chat templates, which want the arguments as an object, and show a text as it is."""
        try:
            return {"name": self.name, "arguments": parse_object(self.arguments.encode() or b"{}")}
        except ApiError:
            return {"name": self.name, "arguments": self.arguments}


def _arguments(value: PastFunction) -> PastFunction:
    """What a model wrote is taken, also if it was cut off or is no JSON: a client sends it back as
    it came.
    """
    if sum(piece.count(b",") for piece in outside_strings(value.arguments.encode())) > MAX_ARGUMENTS:
        fail("invalid_value", f"arguments hold more than {MAX_ARGUMENTS} values")
    return value


class PastCall(BaseModel):
    model_config = _STRICT

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: Annotated[PastFunction, AfterValidator(_arguments)]

    def as_value(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.type, "function": self.function.as_value()}


ToolCalls = Annotated[list[PastCall], AtMost(MAX_CALLS)]
