"""The answers' JSON, complete and in chunks."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(Struct, frozen=True):
    """In a stream, the name comes first, and the arguments piece by piece."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ToolCallDelta(Struct, frozen=True):
    """The first one of a call has its id, type and name."""

    index: int
    function: CalledFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatMessage(Struct, frozen=True):
    content: str | None  # null: there are only tool calls, or reasoning
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET  # ours, and vLLM's; both are names of the same
    reasoning: str | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None  # ours: the stop string or token id
    token_ids: list[int] | UnsetType = UNSET  # vLLM's, with `return_token_ids`


class ChatCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[int, dict[str, Any]] | None] | UnsetType = UNSET  # ours
    warnings: list[str] | UnsetType = UNSET  # ours: ignored fields of the request
    system_fingerprint: str | None = None  # see `engine.checkpoint.fingerprint`
    prompt_token_ids: list[int] | UnsetType = UNSET  # with `return_token_ids`
    weights_version: str | UnsetType = UNSET  # ours: that the engine was given in place of the model's own
    object: Literal["chat.completion"] = "chat.completion"


class ChatDelta(Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET  # those since the last chunk that had any


class ChatCompletionChunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET  # if requested: null in all but the last chunk, or the usage so far
    warnings: list[str] | UnsetType = UNSET  # in the last one
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET  # in the first one
    weights_version: str | UnsetType = UNSET  # ours: that the engine was given in place of the model's own
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class CompletionLogprobs(Struct, frozen=True):
    """One column each; null for the prompt's first token, which was not predicted."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[int, dict[str, Any]] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # with `return_token_ids`; of a stream in a choice's first chunk
    token_ids: list[int] | UnsetType = UNSET  # of a chunk those since the one before


class Completion(Struct, frozen=True):
    """Complete, or a chunk."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    warnings: list[str] | UnsetType = UNSET  # in the last chunk
    system_fingerprint: str | None = None
    weights_version: str | UnsetType = UNSET  # ours: that the engine was given in place of the model's own
    object: Literal["text_completion"] = "text_completion"


class Tokenized(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None  # if they were asked for


class Detokenized(Struct, frozen=True):
    prompt: str


class ModelCard(Struct, frozen=True):
    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "squadron"
    parent: str | None = None  # of an adapter: the model
    permission: tuple[()] = ()


class ModelList(Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"
