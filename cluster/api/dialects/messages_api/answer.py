"""The answers' JSON, whole and as events."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class ThinkingCount(Struct, frozen=True):
    thinking_tokens: int


class MessagesUsage(Struct, frozen=True):
    """The prompt's tokens are those of all three counts together."""

    input_tokens: int  # neither of the others
    output_tokens: int
    output_tokens_details: ThinkingCount
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0  # what a prompt leaves in the cache is not counted
    service_tier: Literal["standard"] | UnsetType = UNSET  # not at a stream's end


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    text: str  # without `citations`: clients take a list for them, or nothing, but no null


class ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""  # thinking is taken back without one


class ToolUseBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageAnswer(Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    model: str
    content: list[Block]
    usage: MessagesUsage
    stop_reason: StopReason | None
    stop_sequence: str | None
    role: Literal["assistant"] = "assistant"
    container: None = None
    warnings: list[str] | UnsetType = UNSET  # ours: ignored fields of the request
    system_fingerprint: str | None = None  # ours: see `engine.checkpoint.fingerprint`
    weights_version: str | UnsetType = UNSET  # ours: that the engine was given in place of the model's own


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    message: MessageAnswer


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    pass


class BlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class Stop(Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None
    container: None = None


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    delta: Stop
    usage: MessagesUsage
    warnings: list[str] | UnsetType = UNSET  # ours


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


Event = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class TokenCount(Struct, frozen=True):
    input_tokens: int
