"""How many tokens of a sequence are worth guessing, by what became of earlier guesses."""

_MAX_PAUSE = 64  # tokens for which a sequence whose guesses keep failing gets none


class Pace:
    """One sequence's."""

    def __init__(self, most: int) -> None:
        self.length = most  # of the next guess, at most
        self._most = most
        self._num_failed = 0  # guesses in a row without a right token
        self._paused_until = 0  # tokens

    @property
    def is_doubtful(self) -> bool:
        """Whether the last guess had no right token: none is due while one is checked."""
        return self._num_failed > 0

    def is_paused(self, num_tokens: int) -> bool:
        """Whether a sequence of so many tokens is to have no guess."""
        return num_tokens < self._paused_until

    def judge(self, num_tokens: int, num_guessed: int, num_right: int) -> None:
        """A guess was checked; the sequence has `num_tokens` now."""
        if num_right == num_guessed:
            self.length = min(2 * self.length, self._most)
        else:
            self.length = max(num_right + 1, self.length // 2)
        self._num_failed = 0 if num_right else self._num_failed + 1
        if self._num_failed > 1:
            self._paused_until = num_tokens + min(2 ** (self._num_failed - 1), _MAX_PAUSE)
