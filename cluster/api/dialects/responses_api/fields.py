"""The request, field by field, as `cluster.api.requests.protocol` has those of chat. The limits of
what chat takes, too, are checked there.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from cluster.api.dialects.responses_api.items import Items
from cluster.api.requests.chat.template import TemplateVariables
from cluster.api.requests.chat.tools import ALLOWED, MAX_TOOLS, NAMED, WORD, ChoiceWord, choice_kind
from cluster.api.requests.fields import (
    MAX_TIMEOUT,
    TEXT,
    AtMost,
    CacheSalt,
    Hint,
    Inert,
    Metadata,
    Only,
    Priority,
    ServiceTier,
    Stop,
    Verbosity,
    as_json,
    fail,
)
from cluster.api.requests.protocol import Addressed
from engine.sampling_params import INT64_MAX, INT64_MIN, MAX_LOGPROBS, MAX_TOP_K

_STRICT = ConfigDict(strict=True, frozen=True, extra="allow")
LOGPROBS = "message.output_text.logprobs"
# What answers have if it is asked for or anyway, and parts of items that none here has.
INCLUDED = (
    LOGPROBS,
    "reasoning.encrypted_content",  # reasoning is sent, and taken back, as it is
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)


def _tool_type(value: str) -> str:
    if value != "function":
        fail("unsupported_parameter", f"Only functions are supported, no hosted tools: {as_json([value[:64]])}")
    return value


_ToolType = Annotated[str, AfterValidator(_tool_type), WithJsonSchema({"enum": ["function"]})]


class FunctionTool(BaseModel):
    model_config = _STRICT

    type: _ToolType
    name: str | None = None  # required; not there in a hosted tool, of which only the type is complained about
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Annotated[Any, Inert(False)] = None
    output_schema: Annotated[Any, Inert()] = None


class FunctionChoice(BaseModel):
    """The function that has to be called."""

    model_config = _STRICT

    type: _ToolType
    name: str


class AllowedChoice(BaseModel):
    """The functions that may be called."""

    model_config = _STRICT

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1), AtMost(MAX_TOOLS)]


Choice = Annotated[
    Annotated[ChoiceWord, Tag(WORD)] | Annotated[FunctionChoice, Tag(NAMED)] | Annotated[AllowedChoice, Tag(ALLOWED)],
    Discriminator(choice_kind),
]


class TextFormat(BaseModel):
    """The form of the answer's text; a schema and its name are of type json_schema."""

    model_config = _STRICT

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class TextConfig(BaseModel):
    model_config = _STRICT

    format: TextFormat | None = None
    verbosity: Verbosity = None


_Summary = Annotated[
    str | None,
    Only("auto", "concise", "detailed"),
    Hint("auto", why="What is shown is the reasoning itself"),
]


class ReasoningConfig(BaseModel):
    model_config = _STRICT

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: _Summary = None
    generate_summary: _Summary = None
    context: Annotated[str | None, Only("auto")] = None
    mode: Annotated[str | None, Only("standard")] = None


class ResponseStreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    include_obfuscation: bool | None = None  # padding of events, which never have any


class ResponsesRequest(Addressed):
    """The body of POST /v1/responses."""

    input: Annotated[
        Annotated[str, Field(min_length=1), Tag(TEXT)] | Annotated[Items, Tag("<items>")],
        Discriminator(lambda value: "<items>" if isinstance(value, list) else TEXT),
    ]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    store: bool | None = None  # default: true, if the server stores responses
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[FunctionTool], AtMost(MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    # Ours, as in chat.
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    top_k: int | None = Field(None, ge=-1, le=MAX_TOP_K)
    stop: Stop | None = None
    min_tokens: int | None = Field(None, ge=0, le=INT64_MAX)
    ignore_eos: bool | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    timeout: float | None = Field(None, gt=0, le=MAX_TIMEOUT)
    chat_template_kwargs: TemplateVariables | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    # But for LOGPROBS without effect on the answer, which repeats most of them.
    include: list[Annotated[str, Only(*INCLUDED)]] | None = Field(None, max_length=16)
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Annotated[str | None, Only("in_memory", "24h")] = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: ServiceTier = None
    max_tool_calls: int | None = Field(None, ge=0, le=INT64_MAX)  # of hosted tools: there are none
    truncation: Annotated[str | None, Only("auto", "disabled")] = None  # what fits needs none
    # Not supported.
    background: Annotated[Any, Inert(False)] = None
    background_options: Annotated[Any, Inert()] = None
    conversation: Annotated[Any, Inert()] = None
    context_management: Annotated[Any, Inert([])] = None
    moderation: Annotated[Any, Inert()] = None
    prompt: Annotated[Any, Inert()] = None
    access_programs: Annotated[Any, Inert()] = None
    image: Annotated[Any, Inert()] = None
