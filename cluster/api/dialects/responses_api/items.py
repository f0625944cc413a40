"""The items of a request's input."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    WithJsonSchema,
)

from cluster.api.requests.fields import MAX_MESSAGES, MAX_PARTS, PARTS, TEXT, AtMost, Hint, Inert, as_json, fail

_STRICT = ConfigDict(strict=True, frozen=True, extra="allow")
KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
_TEXT_TYPES = ("input_text", "output_text", "text")

_Status = Literal["in_progress", "completed", "incomplete"]


def _part_type(value: str) -> str:
    if value not in _TEXT_TYPES:
        fail("unsupported_content", f"The type of a part is {as_json(_TEXT_TYPES[:2])}: the model reads text only")
    return value


class ItemText(BaseModel):
    """A part of a message, or of a tool's answer."""

    model_config = _STRICT

    type: Annotated[str, AfterValidator(_part_type), WithJsonSchema({"enum": [*_TEXT_TYPES]})]
    text: str
    # Of a part of an answer, sent back.
    annotations: Annotated[list[Any] | None, Hint([], why="The model reads the text alone")] = None
    logprobs: Any = None
    prompt_cache_breakpoint: Any = None


_Parts = Annotated[list[ItemText], Field(fail_fast=True), AtMost(MAX_PARTS)]
Content = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[_Parts, Tag(PARTS)],
    Discriminator(lambda value: PARTS if isinstance(value, list) else TEXT),
]


class MessageItem(BaseModel):
    model_config = _STRICT

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: _Status | None = None
    phase: Any = None


class FunctionCallItem(BaseModel):
    model_config = _STRICT

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    arguments: str  # JSON text of an object
    id: str | None = None
    status: _Status | None = None
    caller: Any = None
    namespace: Annotated[Any, Inert()] = None


class FunctionOutputItem(BaseModel):
    """A tool's answer."""

    model_config = _STRICT

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Content
    id: str | None = None
    status: _Status | None = None
    name: str | None = None  # the call has it
    caller: Any = None


class _ReasoningText(BaseModel):
    model_config = _STRICT

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(BaseModel):
    """Of an earlier answer, as it was sent, perhaps another model's."""

    model_config = _STRICT

    type: Literal["reasoning"]
    id: str | None = None
    summary: Annotated[list[Any] | None, Hint([], why="The model reads reasoning, and no summary of it")] = None
    content: Annotated[list[_ReasoningText], AtMost(MAX_PARTS)] | None = None
    encrypted_content: Annotated[str | None, Hint("", why="Only the model that wrote it can read it")] = None
    status: _Status | None = None


class ReferenceItem(BaseModel):
    """An item of a stored response's output, by its id."""

    model_config = _STRICT

    type: Literal["item_reference"]
    id: Annotated[str, Field(min_length=1, max_length=128)]


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is None and isinstance(value, dict) and "role" in value:
        return "<message>"
    return f"<{kind}>" if kind in KINDS else "<unknown>"


def _unknown(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        fail("unsupported_value", f"The type of an item is {as_json(KINDS)}; others are not supported")
    fail("invalid_type", "An item is an object with a type, or with a role")


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
SentItem = Item | ReferenceItem
_SentItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ReferenceItem, Tag("<item_reference>")]
    | Annotated[Any, AfterValidator(_unknown), Tag("<unknown>"), WithJsonSchema({"not": {}})],
    Discriminator(_kind),
]
Items = Annotated[list[_SentItem], Field(min_length=1, fail_fast=True), AtMost(MAX_MESSAGES)]
OUTPUT: TypeAdapter[list[Item]] = TypeAdapter(list[Item])  # of an answer, as if it were sent back
