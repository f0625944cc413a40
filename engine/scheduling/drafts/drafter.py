"""Guesses a sequence's next tokens: what followed where its newest tokens occurred before."""

import numpy as np

from engine.config import SpeculativeConfig
from engine.scheduling.drafts.pace import Pace

_MAX_PLACES = 8192  # that are compared: a text of one word has as many as it is long
_NO_HITS = np.empty(0, np.int64)


class Drafter:
    """One sequence's. Its guesses change with what became of earlier ones; answers do not."""

    def __init__(self, settings: SpeculativeConfig) -> None:
        self._settings = settings
        self._ids = np.empty(0, np.int32)  # the sequence's, of which _count are filled in
        self._count = 0
        self._pace = Pace(settings.num_speculative_tokens)
        self._num_searched = 0  # tokens after which _start is what was found
        self._start: int | None = None
        self._shift: int | None = None  # of the last guess: from its place to where it was copied from

    def guess(self, token_ids: list[int], most: int) -> list[int]:
        """At most `most` tokens that may follow these; they are as many as before, or more. Takes
        microseconds for each thousand.
        """
        most = min(most, self._pace.length)
        if most <= 0 or self._pace.is_paused(len(token_ids)):
            return []
        if len(token_ids) != self._num_searched:  # else a step asks whether to wait, and the next one what for
            self._take(token_ids)
            self._start, self._num_searched = self._find(self._ids[: self._count]), len(token_ids)
        ids, start = self._ids[: self._count], self._start
        if start is None:
            return []
        self._shift = start - self._count
        period = self._count - start  # what is guessed beyond the end repeats what was guessed
        return [int(ids[start + index % period]) for index in range(most)]

    def judge(self, num_tokens: int, num_guessed: int, num_right: int) -> None:
        """A guess was checked; the sequence has `num_tokens` now."""
        self._pace.judge(num_tokens, num_guessed, num_right)

    def is_awaited(self, token_ids: list[int]) -> bool:
        """Whether the token in flight may be followed by a guess: that of more than one now."""
        return bool(self.guess(token_ids, 2))

    def forget(self) -> None:
        """The sequence has lost its blocks, of which nothing here depends."""

    def moved(self) -> None:
        """It has others: likewise."""

    def _take(self, token_ids: list[int]) -> None:
        """Copy those that are new."""
        if len(token_ids) > len(self._ids):
            grown = np.empty(2 * len(token_ids), np.int32)
            grown[: self._count] = self._ids[: self._count]
            self._ids = grown
        self._ids[self._count : len(token_ids)] = token_ids[self._count :]
        self._count = len(token_ids)

    def _find(self, ids: np.ndarray) -> int | None:
        """Where what followed the newest tokens begins: where they have the most tokens in common;
        of several such places the one nearest to where copying would have gone on, or else the
        last. An edited text goes on with what follows the edit, though that may occur often.
        """
        shortest, longest = self._settings.prompt_lookup_min, self._settings.prompt_lookup_max
        ends, best = np.flatnonzero(ids[:-1] == ids[-1]) if len(ids) > shortest else _NO_HITS, _NO_HITS
        for length in range(1, longest + 1):
            if not len(ends):
                break
            ends = ends[-_MAX_PLACES:]
            if length >= shortest:
                best = ends
            ends = ends[ends >= length]
            if length < len(ids):
                ends = ends[ids[ends - length] == ids[-1 - length]]
        if not len(best):
            return None
        if self._shift is None:
            return int(best[-1]) + 1
        return int(best[np.abs(best + 1 - (len(ids) + self._shift)).argmin()]) + 1
