"""The output items of an answer, as a chat's deltas fill them."""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from cluster.api.dialects.responses_api.answer import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTextDelta,
    OutputTextDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ReasoningText,
    ResponseEvent,
    Status,
)
from cluster.api.responses.protocol import ChatDelta, TokenLogprob, ToolCallDelta

_PREFIXES = {OutputMessage: "msg", OutputReasoning: "rs", OutputCall: "fc"}


def response_of(item_id: str) -> str:
    """The id of the response that has the item."""
    return f"resp_{item_id.partition('_')[2].rpartition('_')[0]}"


class Output:
    """One item after the other: the next begins where another kind of content comes, or another
    call.
    """

    def __init__(
        self, response_id: str, num_events: int = 0, logprobs: Callable[[int], list[TokenLogprob]] | None = None
    ) -> None:
        """`response_id`: of which the items' ids are made, so that a stream that is continued
        elsewhere has the same ones. `num_events`: before the first one of this. `logprobs`: of the
        text's tokens so far, from one on.
        """
        self._own_id = response_id.partition("_")[2]
        self.items: list[OutputItem] = []  # those that are whole
        self._open: OutputItem | None = None
        self._pieces: list[str] = []  # of the open one
        self.next_number = num_events
        self._new_logprobs = logprobs
        self._num_told = 0  # of these, in events
        self._logprobs: list[TokenLogprob] = []  # of the open text

    def number(self) -> int:
        """Of the next event, which is made."""
        self.next_number += 1
        return self.next_number - 1

    @property
    def has_open_text(self) -> bool:
        """Whether further content adds to the last item."""
        return isinstance(self._open, OutputMessage)

    def plain_event(self, text: str, number: int) -> OutputTextDelta:
        """Of the open text's next piece, which is not added."""
        assert self._open is not None
        return OutputTextDelta(sequence_number=number, item_id=self._open.id, output_index=len(self.items), delta=text)

    def add_plain(self, text: str, _: Sequence[int]) -> None:
        """To the open text; see `Numbered`."""
        if text:
            self._pieces.append(text)
            self.next_number += 1

    def add(self, delta: ChatDelta) -> Iterator[ResponseEvent]:
        """The events that tell of it."""
        if isinstance(delta.reasoning, str) and delta.reasoning:
            if not isinstance(self._open, OutputReasoning):
                yield from self._begin(OutputReasoning(self._next_id(OutputReasoning), "in_progress", []))
            yield self._piece(delta.reasoning)
        if isinstance(delta.content, str) and delta.content:
            if not isinstance(self._open, OutputMessage):
                yield from self._begin(OutputMessage(self._next_id(OutputMessage), "in_progress", []))
            yield self._piece(delta.content)
        for call in delta.tool_calls or ():
            yield from self._call(call)

    def end(self, status: Status) -> Iterator[ResponseEvent]:
        """The answer has ended, its last item with this status. An answer without anything has an
        empty message.
        """
        if self._open is None and not self.items:
            yield from self._begin(OutputMessage(self._next_id(OutputMessage), "in_progress", []))
        yield from self._close(status)

    def _call(self, call: ToolCallDelta) -> Iterator[ResponseEvent]:
        if isinstance(call.id, str) and isinstance(call.function.name, str):
            item_id = self._next_id(OutputCall)
            yield from self._begin(OutputCall(item_id, "in_progress", call.id, call.function.name, ""))
        if call.function.arguments:
            yield self._piece(call.function.arguments)

    def _begin(self, item: OutputItem) -> Iterator[ResponseEvent]:
        yield from self._close("completed")
        self._open = item
        index = len(self.items)
        yield ItemAdded(sequence_number=self.number(), output_index=index, item=item)
        if not isinstance(item, OutputCall):
            part = OutputText("") if isinstance(item, OutputMessage) else ReasoningText("")
            yield PartAdded(sequence_number=self.number(), item_id=item.id, output_index=index, part=part)

    def _piece(self, piece: str) -> ResponseEvent:
        assert self._open is not None
        self._pieces.append(piece)
        number, item_id, index = self.number(), self._open.id, len(self.items)
        match self._open:
            case OutputMessage():
                return replace(self.plain_event(piece, number), logprobs=self._told_logprobs())
            case OutputReasoning():
                return ReasoningDelta(sequence_number=number, item_id=item_id, output_index=index, delta=piece)
            case OutputCall():
                return ArgumentsDelta(sequence_number=number, item_id=item_id, output_index=index, delta=piece)

    def _close(self, status: Status) -> Iterator[ResponseEvent]:
        if self._open is None:
            return
        text, index = "".join(self._pieces), len(self.items)
        done: OutputItem
        match self._open:
            case OutputMessage(id=item_id) as item:
                self._told_logprobs()  # of tokens without a text, behind it
                part = OutputText(text, logprobs=self._logprobs)
                yield OutputTextDone(
                    sequence_number=self.number(),
                    item_id=item_id,
                    output_index=index,
                    text=text,
                    logprobs=part.logprobs,
                )
                yield PartDone(sequence_number=self.number(), item_id=item_id, output_index=index, part=part)
                done = replace(item, status=status, content=[part])
            case OutputReasoning(id=item_id) as item:
                thought = ReasoningText(text)
                yield ReasoningDone(sequence_number=self.number(), item_id=item_id, output_index=index, text=text)
                yield PartDone(sequence_number=self.number(), item_id=item_id, output_index=index, part=thought)
                done = replace(item, status=status, content=[thought])
            case OutputCall(id=item_id, name=name) as item:
                yield ArgumentsDone(
                    sequence_number=self.number(), item_id=item_id, output_index=index, name=name, arguments=text
                )
                done = replace(item, status=status, arguments=text)
        self._open, self._pieces = None, []
        self.items.append(done)
        yield ItemDone(sequence_number=self.number(), output_index=index, item=done)

    def _told_logprobs(self) -> list[TokenLogprob]:
        """Of the open text, those that no event has told; it has them now."""
        news = [] if self._new_logprobs is None else self._new_logprobs(self._num_told)
        self._num_told += len(news)
        self._logprobs += news
        return news

    def _next_id(self, kind: type[OutputItem]) -> str:
        number = len(self.items) + (self._open is not None)
        return f"{_PREFIXES[kind]}_{self._own_id}_{number}"
