"""A grammar whose state is a hash of the tokens taken: a mask made at any other place than its own
shows as a wrong token.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np

from engine.errors import InputProcessingError
from engine.grammars.interface import Constraint

LEAST = 10  # tokens that may follow, at least


class HashMatcher:
    """A real `Matcher` for a small vocabulary; now and then it is complete."""

    error: str | None = None

    def __init__(self, state: int, vocab_size: int) -> None:
        self._state = state
        self._vocab_size = vocab_size

    @property
    def masks(self) -> "HashMasks":
        return HashMasks(self._vocab_size)

    @property
    def is_complete(self) -> bool:
        return self._state % 61 == 0

    @property
    def allowed(self) -> set[int]:
        """Half of the vocabulary, more or less, by the state."""
        bits = self._state * 0x9E3779B97F4A7C15 >> 16
        some = {token for token in range(self._vocab_size) if bits >> token & 1}
        return some | {(self._state + token) % self._vocab_size for token in range(LEAST)}

    def copy(self) -> Self:
        return type(self)(self._state, self._vocab_size)

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        matcher = self.copy()
        for number, token_id in enumerate(token_ids):
            if token_id not in matcher.allowed:
                return number
            matcher.take(token_id)
            if matcher.is_complete:
                return number
        return len(token_ids)

    def take(self, token_id: int) -> None:
        if token_id not in self.allowed:
            raise InputProcessingError(f"token {token_id} is not allowed")
        self._state = (self._state * 0xBF58476D1CE4E5B9 + token_id + 1) % 2**64 ^ self._state >> 31


class LaboriousMatcher(HashMatcher):
    """Now and then no token's mask can be made."""

    @property
    def error(self) -> str | None:  # type: ignore[override]
        return "too much work" if self._state % 53 == 7 else None


class HashMasks:
    """Real `Masks`."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)

    def fill(self, constraints: Sequence[Constraint]) -> np.ndarray:
        masks = np.zeros((len(constraints), self._num_words), np.uint32)
        for mask, constraint in zip(masks, constraints, strict=True):
            if constraint.matcher.error is not None:
                continue
            allowed: set[int] = constraint.matcher.allowed  # type: ignore[attr-defined]
            for token in allowed - set(constraint.banned_ends):
                mask[token // 32] |= np.uint32(1 << token % 32)
        return masks.view(np.int32)
