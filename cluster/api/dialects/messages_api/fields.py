"""The requests, field by field, as `cluster.api.requests.protocol` has those of chat. The limits of
what chat takes, too, are checked there.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from cluster.api.error_shapes import NO_THREADS
from cluster.api.requests.chat.template import TemplateVariables
from cluster.api.requests.chat.tools import MAX_TOOLS
from cluster.api.requests.fields import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TIMEOUT,
    PARTS,
    TEXT,
    AtMost,
    CacheSalt,
    Hint,
    Inert,
    Only,
    Priority,
    Texts,
    as_json,
    fail,
)
from cluster.api.requests.protocol import Addressed
from engine.sampling_params import INT64_MAX, INT64_MIN, MAX_STOP_STRINGS, MAX_TOP_K

_STRICT = ConfigDict(strict=True, frozen=True, extra="allow")
BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document")


class TextInput(BaseModel):
    model_config = _STRICT

    type: Literal["text"]
    text: str
    cache_control: Any = None  # without effect: prompts are cached by themselves
    citations: Annotated[list[Any] | None, Hint([], why="The model reads the text alone")] = None


def _source_type(value: str) -> str:
    if value != "text":
        fail("unsupported_content", 'The model reads text only: the source of a document is of type "text"')
    return value


class TextSource(BaseModel):
    model_config = _STRICT

    type: Annotated[str, AfterValidator(_source_type), WithJsonSchema({"enum": ["text"]})]
    media_type: Annotated[str, Only("text/plain")]
    data: str


class DocumentInput(BaseModel):
    model_config = _STRICT

    type: Literal["document"]
    source: TextSource
    title: str | None = None
    context: str | None = None  # what it is
    cache_control: Any = None
    citations: Annotated[Any, Inert({"enabled": False}, why="Answers do not cite")] = None


class ThinkingInput(BaseModel):
    model_config = _STRICT

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None  # is not checked
    cache_control: Any = None


class RedactedThinkingInput(BaseModel):
    """Another model's thinking, encrypted, from before a conversation was continued here."""

    model_config = _STRICT

    type: Literal["redacted_thinking"]
    data: Annotated[str, Hint(why="Only the model that wrote it can read it")]


class ToolUseInput(BaseModel):
    model_config = _STRICT

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]
    caller: Any = None
    cache_control: Any = None


def _kind(value: Any) -> str:
    """Of a content block; the tag of an unknown one refuses it."""
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if kind in BLOCKS else "<unknown>"


def _unknown(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str):
        fail("unsupported_content", f"The type of a content block is {as_json(BLOCKS)}: the model reads text only")
    fail("invalid_type", "A content block is an object with a type")


_Unknown = Annotated[Any, AfterValidator(_unknown), WithJsonSchema({"not": {}})]


def _text_only(value: Any) -> str:
    return "<text>" if _kind(value) == "<text>" else "<unknown>"


_TextInput = Annotated[
    Annotated[TextInput, Tag("<text>")] | Annotated[_Unknown, Tag("<unknown>")], Discriminator(_text_only)
]


def _content_kind(value: Any) -> str:
    return PARTS if isinstance(value, list) else TEXT


_TextInputs = Annotated[list[_TextInput], Field(fail_fast=True), AtMost(MAX_PARTS)]
Text = Annotated[Annotated[str, Tag(TEXT)] | Annotated[_TextInputs, Tag(PARTS)], Discriminator(_content_kind)]


class ToolResultInput(BaseModel):
    model_config = _STRICT

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1)]
    content: Text | None = None
    is_error: bool | None = None  # without effect: the content says it
    cache_control: Any = None


Block = TextInput | ThinkingInput | RedactedThinkingInput | ToolUseInput | ToolResultInput | DocumentInput
_Block = Annotated[
    Annotated[TextInput, Tag("<text>")]
    | Annotated[ThinkingInput, Tag("<thinking>")]
    | Annotated[RedactedThinkingInput, Tag("<redacted_thinking>")]
    | Annotated[ToolUseInput, Tag("<tool_use>")]
    | Annotated[ToolResultInput, Tag("<tool_result>")]
    | Annotated[DocumentInput, Tag("<document>")]
    | Annotated[_Unknown, Tag("<unknown>")],
    Discriminator(_kind),
]
_Blocks = Annotated[list[_Block], Field(fail_fast=True), AtMost(MAX_PARTS)]  # none: an empty answer, sent back
_Content = Annotated[Annotated[str, Tag(TEXT)] | Annotated[_Blocks, Tag(PARTS)], Discriminator(_content_kind)]


class InputMessage(BaseModel):
    model_config = _STRICT

    role: Literal["user", "assistant", "system"]
    content: _Content


def _tool_type(value: str) -> str:
    if value != "custom":
        fail("unsupported_parameter", f"Tools of the server are not supported: {as_json([value[:64]])}")
    return value


class CustomTool(BaseModel):
    model_config = _STRICT

    type: Annotated[str, AfterValidator(_tool_type), WithJsonSchema({"enum": ["custom"]})] | None = None
    name: str
    description: str | None = None
    # Not there in a tool of the server, of which only the type is complained about.
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: Any = None  # input is always streamed as it is written
    defer_loading: Annotated[Any, Inert(False)] = None
    allowed_callers: Annotated[Any, Inert([], ["direct"])] = None
    input_examples: Annotated[list[Any] | None, Hint([], why="Chat templates do not show them")] = None


class MessagesToolChoice(BaseModel):
    model_config = _STRICT

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None  # of type tool
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(BaseModel):
    model_config = _STRICT

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    display: Annotated[str | None, Hint("summarized", why="It is shown as it is")] = None


class JsonFormat(BaseModel):
    model_config = _STRICT

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    model_config = _STRICT

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


def _no_thread(value: Any) -> Any:
    if value is not None:
        fail(NO_THREADS, "The server keeps no conversations: leave it out, and send all messages each time")
    return value


class MessagesPrompt(Addressed):
    """The body of POST /v1/messages/count_tokens."""

    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True), AtMost(MAX_MESSAGES)]
    system: Text | None = None
    tools: Annotated[list[CustomTool], AtMost(MAX_TOOLS)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: TemplateVariables | None = None  # ours
    # Without effect on the answer.
    cache_control: Any = None
    context_management: Annotated[
        dict[str, Any] | None, Hint({}, {"edits": []}, why="All of the conversation is read")
    ] = None
    # Not supported.
    speed: Annotated[str | None, Only("standard")] = None
    user_profile_id: Annotated[Any, Inert()] = None
    workspace_id: Annotated[Any, Inert()] = None
    mcp_servers: Annotated[Any, Inert([])] = None
    thread: Annotated[Any, AfterValidator(_no_thread), WithJsonSchema({"type": "null"})] = None


class MessagesRequest(MessagesPrompt):
    """The body of POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=INT64_MAX)
    stream: bool | None = None
    stop_sequences: Annotated[Texts, Field(max_length=MAX_STOP_STRINGS)] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_TOP_K)
    # Ours, as in chat.
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    min_tokens: int | None = Field(None, ge=0, le=INT64_MAX)
    ignore_eos: bool | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    timeout: float | None = Field(None, gt=0, le=MAX_TIMEOUT)
    # Without effect on the answer.
    metadata: dict[str, Any] | None = None
    service_tier: Annotated[str | None, Only("auto", "standard_only")] = None
    # Not supported.
    compaction: Annotated[Any, Inert()] = None
    container: Annotated[Any, Inert()] = None
    diagnostics: Annotated[Any, Inert()] = None
    inference_geo: Annotated[Any, Inert()] = None
