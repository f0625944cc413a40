"""What the driver knows of a sequence in the draft model: what it has computed, and what it has
guessed.

The draft model has its own keys and values in the sequence's blocks. Workers compute them, and
guess, at the end of a step; the guesses come with the step's tokens, and the next step checks them.
"""

from engine.config import SpeculativeConfig
from engine.scheduling.drafts.drafter import Drafter
from engine.scheduling.drafts.pace import Pace

_ENOUGH = 64  # right tokens promised, for any step that may have guesses


class ModelDrafter:
    """One sequence's. What is wrong here makes guesses wrong; answers do not change."""

    def __init__(self, settings: SpeculativeConfig, *, may_guess: bool) -> None:
        """may_guess: otherwise only the prompt is computed, for others that begin with it."""
        self.may_guess = may_guess
        self.num_computed: int | None = None  # tokens in the draft's cache, soon; None: as many as in the model's
        self.num_asked = 0  # tokens that a step in flight guesses
        self.has_moved = False  # since its part of the blocks was last looked at
        self._pace = Pace(settings.num_speculative_tokens)
        self._guessed: list[int] = []
        self._num_tokens = 0  # of the sequence that was guessed on

    def guess(self, token_ids: list[int], most: int) -> list[int]:
        """At most `most` of the tokens that the draft model has guessed after these."""
        return self._guessed[: max(most, 0)] if len(token_ids) == self._num_tokens else []

    def num_wanted(self, num_tokens: int, *, is_checking: bool = False) -> int:
        """How many tokens to guess, at most, after a step of a sequence of so many; is_checking:
        which checks a guess.
        """
        is_off = self._pace.is_paused(num_tokens) or (is_checking and self._pace.is_doubtful)
        return self._pace.length if self.may_guess and not is_off else 0

    def promise(self, token_ids: list[int]) -> int:
        """As that of `Drafter`; 0 unless the token in flight comes with guesses, or has to be known
        for the next ones. It is enough for any step: guesses that were paid for are checked.
        """
        return _ENOUGH if self.num_asked > 0 or self.num_wanted(len(token_ids) + 1) > 0 else 0

    def take(self, num_tokens: int, guessed: list[int]) -> None:
        """A step that was asked to guess has ended; the sequence has `num_tokens` now."""
        if self.num_computed is not None:  # else it has lost its blocks meanwhile
            self.num_computed = num_tokens
        self.num_asked = 0
        self._guessed, self._num_tokens = guessed, num_tokens

    def judge(self, num_tokens: int, num_guessed: int, num_right: int) -> None:
        """A guess was checked; the sequence has `num_tokens` now."""
        self._pace.judge(num_tokens, num_guessed, num_right)

    def forget(self) -> None:
        """The sequence has lost its blocks."""
        self.num_computed = None
        self.num_asked = 0

    def moved(self) -> None:
        """Others that hold the same may have taken the place of the sequence's blocks."""
        self.has_moved = True


AnyDrafter = Drafter | ModelDrafter
