"""The answers' JSON, whole and as events."""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from cluster.api.responses.protocol import TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[TokenLogprob] = ()


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


Part = OutputText | ReasoningText


class OutputMessage(Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputReasoning(Struct, frozen=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    content: list[ReasoningText]
    summary: tuple[()] = ()
    encrypted_content: None = None


class OutputCall(Struct, frozen=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0  # what a prompt leaves in the cache is not counted


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(Struct, frozen=True):
    message: str
    reason: str  # ours: the code of the error
    code: Literal["server_error"] = "server_error"


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseAnswer(Struct, frozen=True):
    """What follows `output` is repeated from the request, with defaults."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: list[OutputItem]
    instructions: str | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    tool_choice: Any
    tools: list[dict[str, Any]]
    text: dict[str, Any]
    reasoning: dict[str, Any]
    max_output_tokens: int | None
    previous_response_id: str | None
    store: bool
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    usage: ResponseUsage | None = None
    completed_at: int | None = None  # seconds since 1970
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    object: Literal["response"] = "response"
    background: Literal[False] = False
    max_tool_calls: int | None = None
    prompt: None = None
    service_tier: Literal["default"] = "default"
    top_logprobs: int = 0
    truncation: Literal["disabled"] = "disabled"
    warnings: list[str] | UnsetType = UNSET  # ours: ignored fields of the request, and what was not stored
    system_fingerprint: str | None = None  # ours: see `engine.checkpoint.fingerprint`
    weights_version: str | UnsetType = UNSET  # ours: that the engine was given in place of the model's own


class ResponseDeleted(Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Struct, frozen=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class _Event(Struct, tag_field="type", frozen=True, kw_only=True):
    sequence_number: int


class ResponseCreated(_Event, tag="response.created", frozen=True, kw_only=True):
    response: ResponseAnswer


class ResponseInProgress(_Event, tag="response.in_progress", frozen=True, kw_only=True):
    response: ResponseAnswer


class ResponseCompleted(_Event, tag="response.completed", frozen=True, kw_only=True):
    response: ResponseAnswer


class ResponseIncomplete(_Event, tag="response.incomplete", frozen=True, kw_only=True):
    response: ResponseAnswer


class ResponseFailed(_Event, tag="response.failed", frozen=True, kw_only=True):
    response: ResponseAnswer


class ItemAdded(_Event, tag="response.output_item.added", frozen=True, kw_only=True):
    output_index: int
    item: OutputItem


class ItemDone(_Event, tag="response.output_item.done", frozen=True, kw_only=True):
    output_index: int
    item: OutputItem


class _PartEvent(_Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int
    content_index: Literal[0] = 0


class PartAdded(_PartEvent, tag="response.content_part.added", frozen=True, kw_only=True):
    part: Part


class PartDone(_PartEvent, tag="response.content_part.done", frozen=True, kw_only=True):
    part: Part


class OutputTextDelta(_PartEvent, tag="response.output_text.delta", frozen=True, kw_only=True):
    delta: str
    logprobs: Sequence[TokenLogprob] = ()


class OutputTextDone(_PartEvent, tag="response.output_text.done", frozen=True, kw_only=True):
    text: str
    logprobs: Sequence[TokenLogprob] = ()


class ReasoningDelta(_PartEvent, tag="response.reasoning_text.delta", frozen=True, kw_only=True):
    delta: str


class ReasoningDone(_PartEvent, tag="response.reasoning_text.done", frozen=True, kw_only=True):
    text: str


class ArgumentsDelta(_Event, tag="response.function_call_arguments.delta", frozen=True, kw_only=True):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Event, tag="response.function_call_arguments.done", frozen=True, kw_only=True):
    item_id: str
    output_index: int
    name: str
    arguments: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)
