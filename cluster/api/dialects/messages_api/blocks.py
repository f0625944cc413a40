"""The content blocks of an answer, as a chat's deltas fill them."""

from collections.abc import Iterator

from cluster.api.dialects.messages_api.answer import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from cluster.api.responses.protocol import ChatDelta, ToolCallDelta
from engine.text.chat_template import as_far_as_read


class Blocks:
    """One after the other: the next begins where another kind of content comes, or another call."""

    def __init__(self) -> None:
        self._begun: list[Block] = []  # as they began
        self._pieces: list[list[str]] = []  # of each one's text, thinking or input
        self._is_open = False

    @property
    def open_text(self) -> int | None:
        """The number of the block that text is now being added to."""
        return len(self._begun) - 1 if self._is_open and isinstance(self._begun[-1], TextBlock) else None

    def add(self, delta: ChatDelta) -> Iterator[Event]:
        """The events that tell of it."""
        if isinstance(delta.reasoning, str) and delta.reasoning:
            yield from self._grow(ThinkingBlock(""), delta.reasoning)
        if isinstance(delta.content, str) and delta.content:
            yield from self._grow(TextBlock(""), delta.content)
        for call in delta.tool_calls or ():
            yield from self._call(call)

    def end(self) -> Iterator[Event]:
        """The answer has ended."""
        if self._is_open:
            self._is_open = False
            yield BlockStop(len(self._begun) - 1)

    def all(self) -> list[Block]:
        """With what they have so far."""
        return [_whole(block, "".join(pieces)) for block, pieces in zip(self._begun, self._pieces, strict=True)]

    def _call(self, call: ToolCallDelta) -> Iterator[Event]:
        if isinstance(call.id, str) and isinstance(call.function.name, str):
            yield from self._begin(ToolUseBlock(call.id, call.function.name, {}))
        if call.function.arguments:
            yield self._piece(call.function.arguments)

    def _grow(self, block: Block, piece: str) -> Iterator[Event]:
        if not self._is_open or type(self._begun[-1]) is not type(block):
            yield from self._begin(block)
        yield self._piece(piece)

    def _begin(self, block: Block) -> Iterator[Event]:
        yield from self.end()
        self._begun.append(block)
        self._pieces.append([])
        self._is_open = True
        yield BlockStart(len(self._begun) - 1, block)

    def _piece(self, piece: str) -> Event:
        self._pieces[-1].append(piece)
        index = len(self._begun) - 1
        match self._begun[-1]:
            case TextBlock():
                return BlockDelta(index, TextDelta(piece))
            case ThinkingBlock():
                return BlockDelta(index, ThinkingDelta(piece))
            case ToolUseBlock():
                return BlockDelta(index, InputDelta(piece))


def _whole(block: Block, text: str) -> Block:
    match block:
        case TextBlock():
            return TextBlock(text)
        case ThinkingBlock():
            return ThinkingBlock(text)
        case ToolUseBlock():
            return ToolUseBlock(block.id, block.name, as_far_as_read(text))
