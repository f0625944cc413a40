"""Which tokens a request's parameters allow, and which ones its bad words rule out after others."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

NO_TOKENS = np.empty(0, np.int32)
NO_VALUES = np.empty(0, np.float32)


class TokenSet(NamedTuple):
    """Of a request, the same at each of its positions: the ids that are allowed, or a mask if that
    is shorter, neither if every token is; and what is added to some logits, -inf for words of one
    token that are banned.
    """

    ids: np.ndarray = NO_TOKENS  # [*] int32
    words: np.ndarray = NO_TOKENS  # [ceil(V / 32)] int32: bit t % 32 of word t // 32 is token t's
    bias_ids: np.ndarray = NO_TOKENS  # [*] int32
    bias_values: np.ndarray = NO_VALUES  # [*] float32
    digest: bytes = b""  # of what it holds; empty if that is nothing


ANY = TokenSet()
NO_PAIRS = np.empty((0, 2), np.int32)


class BadWords:
    """Words as lists of token ids, none of them empty. What a step asks takes as long for a hundred
    words as for one, unless the output is about to be one of them.
    """

    def __init__(self, words: Iterable[list[int]] = ()) -> None:
        self._single: list[int] = []
        self._after_one: dict[int, list[list[int]]] = defaultdict(list)  # by the last token but one
        self._after_two: dict[int, list[list[int]]] = defaultdict(list)  # by the one before that
        self.longest = 0  # tokens
        pairs = []
        for word in words:
            self.longest = max(self.longest, len(word))
            if len(word) == 1:
                self._single += word
                continue
            self._after_one[word[-2]].append(word)
            if len(word) == 2:
                pairs.append(word)
            else:
                self._after_two[word[-3]].append(word)
        self._pairs = np.array(pairs, np.int32) if pairs else NO_PAIRS
        self._any = bool(self._single or self._after_one)

    def __bool__(self) -> bool:
        return self._any

    def always(self) -> list[int]:
        """The tokens that are words."""
        return self._single

    def after(self, output_ids: list[int]) -> list[int]:
        """What would make a word of more tokens after these: the last `longest` at least, as far as
        there are so many.
        """
        words = self._after_one.get(output_ids[-1], ()) if output_ids else ()
        return [word[-1] for word in words if _ends(output_ids, word[:-1])]

    def pairs_after(self, output_ids: list[int]) -> np.ndarray:
        """[*, 2] int32: one more token after these, and what would make a word after that."""
        words = self._after_two.get(output_ids[-1], ()) if output_ids else ()
        more = [word[-2:] for word in words if _ends(output_ids, word[:-2])]
        return np.concatenate((self._pairs, np.array(more, np.int32))) if more else self._pairs


NO_WORDS = BadWords()


def _ends(output_ids: list[int], token_ids: list[int]) -> bool:
    return len(output_ids) >= len(token_ids) and output_ids[-len(token_ids) :] == token_ids
