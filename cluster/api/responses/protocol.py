"""The answers' JSON, complete and in chunks."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

FinishReason = Literal["stop", "length"]


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


class ChatMessage(Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None  # ours: the stop string or token id


class ChatCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[int, dict[str, Any]] | None] | UnsetType = UNSET  # ours
    warnings: list[str] | UnsetType = UNSET  # ours: ignored fields of the request
    system_fingerprint: str | None = None  # see `engine.checkpoint.fingerprint`
    object: Literal["chat.completion"] = "chat.completion"


class ChatDelta(Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | UnsetType | None = UNSET


class ChatCompletionChunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET  # null in all but the last chunk, if requested
    warnings: list[str] | UnsetType = UNSET  # in the last one
    system_fingerprint: str | None = None
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


class Completion(Struct, frozen=True):
    """Complete, or a chunk."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    warnings: list[str] | UnsetType = UNSET  # in the last chunk
    system_fingerprint: str | None = None
    object: Literal["text_completion"] = "text_completion"


class ModelCard(Struct, frozen=True):
    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "squadron"
    parent: None = None
    permission: tuple[()] = ()


class ModelList(Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"
