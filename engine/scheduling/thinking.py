"""A limit to reasoning: after so many tokens, the one that ends it is given, not sampled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from engine.text.reasoning import ends_inside


class _Stage(Enum):
    BEFORE = "before"  # nothing but blanks so far
    INSIDE = "inside"
    OVER = "over"  # or never begun


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """What a request wants of each of its choices."""

    num_tokens: int  # of reasoning, at most
    begin: int  # the tokens around it
    end: int
    is_blank: Callable[[int], bool]  # whether a token is nothing but spaces and line ends

    def state(self, prompt_token_ids: Sequence[int]) -> "Thinking":
        """That of a choice without tokens; a prompt may end in the reasoning's beginning."""
        return Thinking(self, is_inside=ends_inside(prompt_token_ids, self.begin, self.end))


class Thinking:
    """Where a choice's reasoning is: a function of its tokens so far. Only what it begins with is
    reasoning, as for the API.
    """

    __slots__ = ("_budget", "_num_left", "_stage")

    def __init__(self, budget: ThinkingBudget, *, is_inside: bool) -> None:
        self._budget = budget
        self._stage = _Stage.INSIDE if is_inside else _Stage.BEFORE
        self._num_left = budget.num_tokens

    def take(self, token_id: int) -> None:
        """The choice's next token."""
        budget = self._budget
        match self._stage:
            case _Stage.BEFORE if token_id == budget.begin:
                self._stage = _Stage.INSIDE
            case _Stage.BEFORE if not budget.is_blank(token_id):
                self._stage = _Stage.OVER
            case _Stage.INSIDE if token_id == budget.end:
                self._stage = _Stage.OVER
            case _Stage.INSIDE:
                self._num_left -= 1

    @property
    def forced_token(self) -> int | None:
        """The next token, if it is given."""
        return self._budget.end if self._stage is _Stage.INSIDE and self._num_left <= 0 else None

    def is_free_after(self, num_unknown: int) -> bool:
        """Whether the token after so many of the next ones is sampled, whatever these are."""
        match self._stage:
            case _Stage.BEFORE:
                return num_unknown <= self._num_left  # one of them would be the beginning
            case _Stage.INSIDE:
                return num_unknown < self._num_left
            case _Stage.OVER:
                return True

    def copy(self) -> "Thinking":
        made = Thinking(self._budget, is_inside=False)
        made._stage, made._num_left = self._stage, self._num_left
        return made
