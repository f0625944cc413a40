"""Separates a model's reasoning from its answer: `<think>...</think>`, as Qwen3 writes it."""

from cluster.api.answers.marks import cut
from cluster.api.answers.parts import Content, Part, Reasoning
from engine.text.reasoning import BEGIN, END


class ReasoningParser:
    """The reasoning comes first, or not at all. As Qwen3's chat template does, it drops the line
    ends around both parts.
    """

    def __init__(self, *, is_inside: bool = False) -> None:
        """`is_inside`: the prompt ends in BEGIN, as that of models that always reason."""
        self._state = self._reasoning if is_inside else self._before
        self._text = ""  # not decided yet
        self._has_begun = False  # some of the reasoning was shown

    @property
    def is_over(self) -> bool:
        """Whether all further text is content, as it is."""
        return self._state == self._rest

    def add(self, text: str) -> list[Part]:
        self._text += text
        return self._state(is_end=False)

    def end(self) -> list[Part]:
        return self._state(is_end=True)

    def _before(self, *, is_end: bool) -> list[Part]:
        text = self._text.lstrip()
        if text.startswith(BEGIN):
            self._text = text.removeprefix(BEGIN)
            self._state = self._reasoning
        elif BEGIN.startswith(text) and not is_end:
            return []
        else:
            self._state = self._rest
        return self._state(is_end=is_end)

    def _reasoning(self, *, is_end: bool) -> list[Part]:
        thought, mark, rest = self._text.partition(END)
        if mark:
            self._text, self._state = rest, self._answer
            return [Reasoning(self._first(thought).rstrip("\n")), *self._answer(is_end=is_end)]
        if not is_end:
            thought, self._text = cut(self._text, END)
            shown = thought.rstrip("\n")
            self._text = thought[len(shown) :] + self._text
            thought = shown
        return [Reasoning(self._first(thought))]

    def _first(self, thought: str) -> str:
        """Without line ends, if it is the first of the reasoning."""
        if not self._has_begun:
            thought = thought.lstrip("\n")
        self._has_begun |= bool(thought)
        return thought

    def _answer(self, *, is_end: bool) -> list[Part]:
        self._text = self._text.lstrip("\n")
        if self._text:
            self._state = self._rest
        return self._rest(is_end=is_end)

    def _rest(self, *, is_end: bool) -> list[Part]:
        text, self._text = self._text, ""
        return [Content(text)]
