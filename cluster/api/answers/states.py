"""A parser that is a state machine."""

from collections.abc import Callable

from cluster.api.answers.parts import Part


class StateParser:
    """A `TextParser` whose states are methods: each takes what it can of `_text` and says, by
    `_state`, the next one.
    """

    def __init__(self, first: Callable[..., list[Part]]) -> None:
        """Each state is called with `is_end`, whether no more text comes."""
        self._state = first
        self._text = ""  # not decided yet

    def add(self, text: str) -> list[Part]:
        self._text += text
        return self._run(is_end=False)

    def end(self) -> list[Part]:
        return self._run(is_end=True)

    def _run(self, *, is_end: bool) -> list[Part]:
        """State by state, until one needs more text."""
        parts: list[Part] = []
        while True:
            before = self._state, len(self._text)
            parts += self._state(is_end=is_end)
            if before == (self._state, len(self._text)):
                return parts
