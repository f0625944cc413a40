"""llguidance's matchers, as the engine asks for them: see `engine.grammars.interface`."""

import os
from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher

from engine.errors import InputProcessingError
from engine.grammars.interface import Constraint
from engine.grammars.source import reason

WORD_BITS = 32
MAX_THREADS = 8  # that walk the vocabulary for the rows of one step


class LibraryMatcher:
    """A `Matcher`."""

    __slots__ = ("library", "masks")

    def __init__(self, library: LLMatcher, masks: "LibraryMasks") -> None:
        self.library = library
        self.masks = masks

    @property
    def is_complete(self) -> bool:
        return bool(self.library.is_stopped())

    @property
    def error(self) -> str | None:
        return reason(self.library) if self.library.is_error() else None

    def copy(self) -> "LibraryMatcher":
        return LibraryMatcher(self.library.deep_copy(), self.masks)

    def take(self, token_id: int) -> None:
        if not self.library.consume_token(token_id):
            raise InputProcessingError(f"token {token_id} does not fit the structured output: {self.error}")


class LibraryMasks:
    """`Masks`, made on several threads if there are cores for them."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // WORD_BITS)
        self._threads = LLExecutor(num_threads=min(MAX_THREADS, os.cpu_count() or 1))

    def fill(self, constraints: Sequence[Constraint]) -> np.ndarray:
        masks = np.zeros((len(constraints), self._num_words), np.int32)
        rows = [(constraint.matcher.library, index) for index, constraint in enumerate(constraints)]  # type: ignore[attr-defined]
        self._threads.unsafe_compute_mask_ptr(rows, masks.ctypes.data, masks.strides[0], len(masks))
        for mask, constraint in zip(masks, constraints, strict=True):
            if constraint.matcher.error is not None:
                mask[:] = 0
            elif constraint.banned_ends:
                _ban(mask, constraint.banned_ends)
        return masks


def _ban(mask: np.ndarray, token_ids: Sequence[int]) -> None:
    """Take tokens out of mask [W] int32, unless that leaves none."""
    before = mask.copy()
    words = mask.view(np.uint32)
    for token_id in token_ids:
        words[token_id // WORD_BITS] &= np.uint32(~(1 << token_id % WORD_BITS) & 0xFFFFFFFF)
    if not mask.any():
        mask[:] = before
