"""A chat's message, complete or in deltas, from the text of its choice."""

import hashlib
from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType

from cluster.api.answers.form import Form
from cluster.api.answers.parts import Arguments, CallBegun, Content, Part, Reasoning, joined
from cluster.api.responses.protocol import CalledFunction, ChatDelta, ChatMessage, FinishReason, ToolCall, ToolCallDelta


class ChoiceParser:
    """One choice's text, as deltas of a message."""

    def __init__(self, form: Form, prompt_ids: Sequence[int], call_id: str, index: int) -> None:
        """`call_id`, `index`: the request's id and the choice's number, of which the ids of its
        tool calls are made: a stream that is continued elsewhere has the same ones.
        """
        self._form = form
        self._parser = form.parser(prompt_ids)
        self._names = f"{call_id}/{index}"
        self.num_calls = 0

    @property
    def is_plain(self) -> bool:
        """Whether all further text is content, as it is."""
        return self._parser.is_plain

    def deltas(self, text: str, *, is_end: bool) -> list[ChatDelta]:
        """Of the text's next piece."""
        return [self._delta(part) for part in self._shown([*self._parser.add(text), *self._end(is_end=is_end)])]

    def message(self, text: str) -> ChatMessage:
        """Of the whole text."""
        content, reasoning, calls = "", "", []
        for part in self._shown([*self._parser.add(text), *self._parser.end()]):
            match part:
                case Content(piece):
                    content += piece
                case Reasoning(piece):
                    reasoning += piece
                case CallBegun(name):
                    calls.append(ToolCall(self._id(), CalledFunction("", name)))
                case Arguments(piece):
                    function = CalledFunction(calls[-1].function.arguments + piece, calls[-1].function.name)
                    calls[-1] = ToolCall(calls[-1].id, function)
        thought: str | UnsetType = reasoning or UNSET
        return ChatMessage(None if calls and not content else content, calls or UNSET, thought, thought)

    def finish_reason(self, reason: FinishReason | None) -> FinishReason | None:
        """The API's for a choice that ended with calls."""
        return "tool_calls" if reason == "stop" and self.num_calls else reason

    def _end(self, *, is_end: bool) -> list[Part]:
        return self._parser.end() if is_end else []

    def _shown(self, parts: list[Part]) -> Iterator[Part]:
        """Without what the request does not want to see."""
        for part in joined(parts):
            match part:
                case CallBegun():
                    self.num_calls += 1
                    is_shown = self._form.is_parallel or self.num_calls == 1
                case Arguments():
                    is_shown = self._form.is_parallel or self.num_calls == 1
                case Reasoning():
                    is_shown = self._form.shows_reasoning
                case Content():
                    is_shown = True
            if is_shown:
                yield part

    def _delta(self, part: Part) -> ChatDelta:
        match part:
            case Content(text):
                return ChatDelta(content=text)
            case Reasoning(text):
                return ChatDelta(reasoning_content=text, reasoning=text)
            case CallBegun(name):
                call = ToolCallDelta(self.num_calls - 1, CalledFunction("", name), self._id(), "function")
                return ChatDelta(tool_calls=[call])
            case Arguments(text):
                return ChatDelta(tool_calls=[ToolCallDelta(self.num_calls - 1, CalledFunction(text))])

    def _id(self) -> str:
        """Of the call that has just begun."""
        return "call_" + hashlib.sha256(f"{self._names}/{self.num_calls}".encode()).hexdigest()[:24]
