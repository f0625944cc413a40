"""Guesses a sequence's next tokens: what followed where its newest tokens occurred before.

A step that checks a guess takes up to twice as long as one that draws the next token alone, so a
guess has to be likely. In any text two tokens recur by chance; what is being copied recurs as a
whole. So that a text which copies nothing costs little, `prompt_lookup_min` tokens in common are
enough only after a right guess: a sequence begins with twice as many, and needs twice as many again
after each wrong one.
"""

import numpy as np

from engine.config import SpeculativeConfig
from engine.scheduling.drafts.pace import Pace
from engine.scheduling.drafts.places import Places

_MAX_COMMON = 2  # times `prompt_lookup_max`: more tokens in common promise no more
_GOOD = 2  # right tokens of a guess that is worth its step
_MAX_PLACES = 8192  # that are compared: a text of one word has as many as it is long
_FEW = 16  # of these, which are compared one by one
_NO_PLACES = np.empty(0, np.int64)


class Drafter:
    """One sequence's. Its guesses change with what became of earlier ones; answers do not."""

    def __init__(self, settings: SpeculativeConfig) -> None:
        self._settings = settings
        self._pace = Pace(settings.num_speculative_tokens)
        shortest, longest = settings.prompt_lookup_min, settings.prompt_lookup_max
        self._at_first = min(2 * shortest, longest)  # tokens in common that are enough, also after a wrong guess
        self._least_common = self._at_first  # now, at a place that is worth a guess
        self._places = Places(self._at_first)
        self._due = 0  # tokens of the sequence before which no place can have so many
        self._num_searched = 0  # tokens after which _start is what was found
        self._start: int | None = None
        self._num_common = 0  # tokens, at the place that was found
        self._num_right = 0  # of the last guess
        self._shift: int | None = None  # of the last guess: from its place to where it was copied from

    def guess(self, token_ids: list[int], most: int) -> list[int]:
        """At most `most` tokens that may follow these; they are as many as before, or more."""
        most = min(most, self._pace.length)
        if most <= 0 or self.rests(len(token_ids)):
            return []
        if len(token_ids) != self._num_searched:  # else a step asks whether to wait, and the next one what for
            self._search(token_ids)
        start, count = self._start, len(token_ids)
        if start is None:
            return []
        self._shift = start - count
        period = count - start  # what is guessed beyond the end repeats what was guessed
        return [token_ids[start + index % period] for index in range(most)]

    def rests(self, num_tokens: int) -> bool:
        """Whether a sequence of so many tokens has no guess, whatever they are."""
        return num_tokens < self._due or self._pace.is_paused(num_tokens)

    def judge(self, num_tokens: int, num_guessed: int, num_right: int) -> None:
        """A guess was checked; the sequence has `num_tokens` now."""
        self._num_right = num_right
        self._pace.judge(num_tokens, num_guessed, num_right)
        if num_right >= min(_GOOD, num_guessed):
            self._least_common = self._settings.prompt_lookup_min
        elif not num_right:
            self._least_common = min(2 * self._least_common, self._settings.prompt_lookup_max)

    def promise(self, token_ids: list[int]) -> int:
        """About twice as many right tokens as a guess after these, or after the one in flight, may
        have; 0: there is none. What has been copied so far goes on for as long again.
        """
        return max(self._num_common, 2 * self._num_right, 1) if self.guess(token_ids, 2) else 0

    def forget(self) -> None:
        """The sequence has lost its blocks, of which nothing here depends."""

    def moved(self) -> None:
        """It has others: likewise."""

    def _search(self, token_ids: list[int]) -> None:
        """Look for a place with enough tokens in common. Another token makes one more at most."""
        num_common, start = self._find(token_ids)
        self._num_common, is_enough = num_common, num_common >= self._least_common
        self._start, self._num_searched = start if is_enough else None, len(token_ids)
        self._due = 0 if is_enough else len(token_ids) + self._least_common - num_common

    def _find(self, token_ids: list[int]) -> tuple[int, int | None]:
        """Where what followed the newest tokens begins: where they have the most tokens in common,
        and how many, up to `_MAX_COMMON` times `prompt_lookup_max`; of several places with that
        many, the one nearest to where copying would have gone on, or else the last. An edited text
        goes on with what follows the edit, though that may occur often. None if there is no such
        place; and if it would have too few, with how many it has at most.
        """
        count, longest, width = len(token_ids), self._settings.prompt_lookup_max, self._at_first
        aim = count if self._shift is None else count + self._shift
        self._places.take(token_ids)
        places = self._places.few(_FEW)
        if places is not None:
            places = [place for place in places if _num_common(token_ids, place, width) == width]
            if not places and self._least_common >= width:
                return width - 1, None
        if not places:
            places = _best_of_many(np.frombuffer(self._places.ids, np.int32), longest, aim)
        if not places:
            return 0, None
        start = max(places, key=lambda place: (_num_common(token_ids, place, longest), -abs(place - aim)))
        return _num_common(token_ids, start, _MAX_COMMON * longest), start


def _best_of_many(ids: np.ndarray, longest: int, aim: int) -> list[int]:
    """Of the places that follow the last of these tokens [T], a few with the most in common, or of
    many with as many in common, the one nearest to `aim`; in order.
    """
    places = np.flatnonzero(ids[:-1] == ids[-1])[-_MAX_PLACES:] + 1
    for length in range(1, longest):
        longer = places[places > length] if len(places) > _FEW else _NO_PLACES
        longer = longer[ids[longer - 1 - length] == ids[-1 - length]] if len(longer) else longer
        if not len(longer):
            break
        places = longer
    if len(places) > _FEW:
        places = places[[np.abs(places - aim).argmin()]]
    best: list[int] = places.tolist()
    return best


def _num_common(token_ids: list[int], place: int, most: int) -> int:
    """How many of the tokens before a place are the newest ones."""
    num_common = 0
    while num_common < min(place, most) and token_ids[place - 1 - num_common] == token_ids[-1 - num_common]:
        num_common += 1
    return num_common
