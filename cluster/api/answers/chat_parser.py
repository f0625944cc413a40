"""Splits the text of a chat's answer into reasoning, content and tool calls."""

from collections.abc import Sequence

from cluster.api.answers.parts import Content, Part, TextParser, joined
from cluster.api.answers.reasoning import ReasoningParser


class ChatParser:
    """Of one choice: first the reasoning is separated, then tool calls are looked for."""

    def __init__(self, reasoning: ReasoningParser | None, calls: TextParser | None) -> None:
        """Without a parser, its parts are content."""
        self._reasoning = reasoning
        self._calls = calls

    @property
    def is_plain(self) -> bool:
        """Whether all further text is content, as it is."""
        return self._calls is None and (self._reasoning is None or self._reasoning.is_over)

    def add(self, text: str) -> list[Part]:
        parts = [Content(text)] if self._reasoning is None else self._reasoning.add(text)
        return joined(self._with_calls(parts))

    def end(self) -> list[Part]:
        parts = [] if self._reasoning is None else self._reasoning.end()
        return joined([*self._with_calls(parts), *(() if self._calls is None else self._calls.end())])

    def _with_calls(self, parts: Sequence[Part]) -> list[Part]:
        found: list[Part] = []
        for part in parts:
            if isinstance(part, Content) and self._calls is not None:
                found += self._calls.add(part.text)
            else:
                found.append(part)
        return found
