"""The requests, field by field: types and the OpenAI API's limits; `SamplingParams` checks the
rest.

Strict: nothing is converted, `true` is no number and 1.0 no integer. Null means omitted. Unknown
fields are in `model_extra`.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from cluster.api.requests.chat.template import Documents, TemplateVariables
from cluster.api.requests.chat.tools import ToolCalls, ToolChoice, Tools
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
    LogitBias,
    Metadata,
    NumKept,
    OnePrompt,
    Only,
    Priority,
    Prompts,
    ServiceTier,
    Stop,
    Texts,
    TokenIds,
    Verbosity,
    as_json,
    fail,
)
from cluster.api.requests.unsupported import Unsupported, UnsupportedInChat, UnsupportedInCompletions
from engine.sampling_params import INT64_MAX, INT64_MIN, MAX_CHOICES, MAX_LOGPROBS, MAX_TOP_K

_STRICT = ConfigDict(strict=True, frozen=True, extra="allow")


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding of chunks, which never have any
    continuous_usage_stats: bool | None = None  # the usage so far in every chunk


FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def _format_type(value: str) -> str:
    if value in ("grammar", "python"):
        fail("unsupported_parameter", f"Not supported: the type of a response format is {as_json(FORMATS)}")
    if value not in FORMATS:
        fail("invalid_value", f"The type of a response format is {as_json(FORMATS)}")
    return value


class JsonSchemaFormat(BaseModel):
    model_config = _STRICT

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")  # without effect on the answer
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None  # an answer always is of the schema
    description: str | None = None  # without effect on the answer


class ResponseFormat(BaseModel):
    model_config = _STRICT

    type: Annotated[str, AfterValidator(_format_type), WithJsonSchema({"enum": [*FORMATS]})]
    json_schema: JsonSchemaFormat | None = None
    # Of structural tags.
    triggers: list[Any] | None = None
    structures: list[Any] | None = None
    format: dict[str, Any] | None = None  # not supported, and refused by name


GuidedJson = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[dict[str, Any], Tag("<schema>")],
    Discriminator(lambda value: TEXT if isinstance(value, str) else "<schema>"),
]


class SamplingFields(BaseModel):
    """What every door takes: both routes, and the application's handle."""

    model_config = _STRICT

    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: Stop | None = None
    logit_bias: LogitBias | None = None
    # Known to other engines too.
    top_k: int | None = Field(None, ge=-1, le=MAX_TOP_K)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, allow_inf_nan=False)
    stop_token_ids: TokenIds | None = None
    bad_words: Annotated[Texts, Field(max_length=128)] | None = None
    allowed_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0, le=INT64_MAX)
    thinking_token_budget: int | None = Field(None, ge=-1, le=INT64_MAX)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    beam_width: int | None = Field(None, ge=1, le=MAX_CHOICES)
    length_penalty: float | None = Field(None, ge=-10, le=10, allow_inf_nan=False)
    early_stopping: bool | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    timeout: float | None = Field(None, gt=0, le=MAX_TIMEOUT)
    truncate_prompt_tokens: NumKept | None = None
    add_special_tokens: bool | None = None
    # The form of the answer: one of these. The last four are older names for the second's keys.
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: GuidedJson | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class Addressed(BaseModel):
    """What every body that is sent to a model has."""

    model_config = _STRICT

    model: str | None = Field(None, min_length=1)  # default: the served model


class GenerationRequest(Addressed, SamplingFields, Unsupported):
    """The fields of both routes."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    use_beam_search: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None  # in log probabilities
    # Without effect on the answer.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Annotated[str | None, Only("in_memory", "24h")] = None
    prompt_cache_options: dict[str, Any] | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier = None
    store: Annotated[bool | None, Hint(False, why="This server stores responses alone, those of /v1/responses")] = None
    guided_decoding_backend: Any = None
    request_id: Annotated[str | None, Hint(why="The server makes the id, which the answer has")] = None


class CompletionRequest(GenerationRequest, UnsupportedInCompletions):
    """The body of POST /v1/completions."""

    max_tokens: int | None = Field(None, ge=0, le=INT64_MAX)  # 0: the prompt alone, which `echo` shows
    prompt: Prompts
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


def _part_type(value: str) -> str:
    if value in ("image_url", "input_audio", "video_url", "audio_url", "file"):
        fail("unsupported_content", "The model reads text only")
    if value == "refusal":
        fail("unsupported_content", "Refusals have no form of their own here: send their text as a part of type 'text'")
    if value != "text":
        fail("invalid_value", "The type of a content part is 'text'")
    return value


class TextPart(BaseModel):
    model_config = _STRICT

    type: Annotated[str, AfterValidator(_part_type), WithJsonSchema({"enum": ["text"]})]
    text: str
    prompt_cache_breakpoint: Any = None  # without effect on the answer


def _content_kind(value: Any) -> str:
    return PARTS if isinstance(value, list) else TEXT


_Parts = Annotated[list[TextPart], Field(min_length=1, fail_fast=True), AtMost(MAX_PARTS)]


ROLES = ("system", "developer", "user", "assistant")


def _role(value: str) -> str:
    if value == "function":
        fail("unsupported_value", 'Functions are not supported: tools are, with the role "tool"')
    if value not in ROLES:
        fail("invalid_value", f"A role is {as_json((*ROLES, 'tool'))}")
    return value


_Content = Annotated[Annotated[str, Tag(TEXT)] | Annotated[_Parts, Tag(PARTS)], Discriminator(_content_kind)]


class Message(BaseModel):
    model_config = _STRICT

    role: Annotated[str, AfterValidator(_role), WithJsonSchema({"enum": [*ROLES]})]
    tool_calls: Annotated[Any, Inert([])] = None
    name: str | None = None  # of the author; for chat templates that show it
    reasoning_content: str | None = None  # of an assistant; both are names of the same
    reasoning: str | None = None
    annotations: Annotated[Any, Inert([])] = None
    audio: Annotated[Any, Inert()] = None
    refusal: Annotated[Any, Inert("")] = None
    function_call: Annotated[Any, Inert()] = None
    content: _Content

    @model_validator(mode="before")
    @classmethod
    def _may_have_thought_only(cls, value: Any) -> Any:
        """As an assistant that was cut short."""
        match value:
            case {"role": "assistant", "reasoning_content": str()} | {"role": "assistant", "reasoning": str()}:
                if value.get("content") is None:
                    return {**value, "content": ""}
        return value


class CallMessage(BaseModel):
    """An assistant's that called tools."""

    model_config = _STRICT

    role: Literal["assistant"]
    name: str | None = None
    tool_calls: Annotated[ToolCalls, Field(min_length=1)]
    reasoning_content: str | None = None
    reasoning: str | None = None
    annotations: Annotated[Any, Inert([])] = None
    audio: Annotated[Any, Inert()] = None
    refusal: Annotated[Any, Inert("")] = None
    function_call: Annotated[Any, Inert()] = None
    content: _Content | None = None


class ToolMessage(BaseModel):
    """A tool's answer."""

    model_config = _STRICT

    role: Literal["tool"]
    tool_call_id: Annotated[str, Field(min_length=1)]
    name: str | None = None
    content: _Content


_PLAIN, _CALLS, _TOOL = "<message>", "<calls>", "<tool>"


def _message_kind(value: Any) -> str:
    match value:
        case {"role": "tool"}:
            return _TOOL
        case {"role": "assistant", "tool_calls": [_, *_]}:
            return _CALLS
        case _:
            return _PLAIN


AnyMessage = Message | CallMessage | ToolMessage
_AnyMessage = Annotated[
    Annotated[Message, Tag(_PLAIN)] | Annotated[CallMessage, Tag(_CALLS)] | Annotated[ToolMessage, Tag(_TOOL)],
    Discriminator(_message_kind),
]
_Messages = Annotated[list[_AnyMessage], Field(min_length=1, fail_fast=True), AtMost(MAX_MESSAGES)]


class Prediction(BaseModel):
    """What the caller expects the answer to be, for speed alone."""

    model_config = _STRICT

    type: Literal["content"]
    content: _Content


class ConversationFields(BaseModel):
    """What a conversation has for the chat template beside its messages."""

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    documents: Documents | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class HandleRequest(ConversationFields, GenerationRequest):
    """What other Ray jobs send, where the methods are ours."""

    prompt: OnePrompt | None = None
    messages: _Messages | None = None
    request_id: str | None = None
    trace_headers: dict[str, str] | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


class ChatRequest(ConversationFields, GenerationRequest, UnsupportedInChat):
    """The body of POST /v1/chat/completions."""

    messages: _Messages
    max_completion_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    modalities: list[Literal["text"]] | None = Field(None, min_length=1, max_length=1)
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    echo: bool | None = None  # the answer begins with the last message, if that is an assistant's
    verbosity: Verbosity = None
    prediction: Prediction | None = None  # without effect on the answer
