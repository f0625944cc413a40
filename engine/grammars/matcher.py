"""llguidance's matchers, as the engine asks for them: see `engine.grammars.interface`."""

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLExecutor, LLMatcher

from engine.errors import InputProcessingError
from engine.grammars.grammar import Grammar
from engine.grammars.interface import Constraint
from engine.grammars.source import reason

WORD_BITS = 32
# In the library's errors, where its lexer is exhausted: for all copies that share it.
EXHAUSTED = ("too many states", "too many expressions")
# In errors where too much may follow a token, as one of thousands of optional properties: there is
# no mask then.
TOO_WIDE = "items; max is"
MAX_THREADS = 8  # that walk the vocabulary for the rows of one step
# What takes longer in all is worth threads; less is done before they have begun, where the step's
# own threads keep the cores busy.
ALONE_SECONDS = 1e-3
NEWEST = 0.125  # share of the newest measurement


class LibraryMatcher:
    """A `Matcher`."""

    __slots__ = ("_generation", "_grammar", "_has_mask", "_root", "_taken", "library", "masks")

    def __init__(self, grammar: Grammar, masks: "LibraryMasks", taken: Sequence[int] = ()) -> None:
        """After `taken`, which fit."""
        self.masks = masks
        self._grammar = grammar
        self._taken = list(taken)
        self._has_mask = False  # of the next token
        self._begin()

    @property
    def is_complete(self) -> bool:
        return bool(self.library.is_stopped()) and not self.library.is_error()

    @property
    def is_spent(self) -> bool:
        return self._grammar.is_spent

    @property
    def error(self) -> str | None:
        return reason(self.library) if self.library.is_error() else None

    def copy(self) -> "LibraryMatcher":
        other = LibraryMatcher(self._grammar, self.masks)
        if self._taken:
            other.library, other._root, other._generation = self.library.deep_copy(), self._root, self._generation
            other._taken, other._has_mask = self._taken.copy(), self._has_mask
        return other

    def take(self, token_id: int) -> None:
        if not self._has_mask:
            self._refuel()
        is_taken = self.library.consume_token(token_id) or TOO_WIDE in (self.error or "")
        if not is_taken and not (self._renew() and self.library.consume_token(token_id)):
            raise InputProcessingError(f"token {token_id} does not fit the structured output: {self.error}")
        self._has_mask = False
        self._taken.append(token_id)

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        if not self._grammar.is_renewable:
            return 0
        self._refuel()
        trial = self.library.deep_copy()
        number = int(trial.validate_tokens(list(token_ids)))
        trial.try_consume_tokens(list(token_ids[:number]))
        self._refuel()  # what others have left of it is theirs
        return 0 if trial.is_error() else number - bool(number and trial.is_stopped())

    def rehearse(self, token_ids: Sequence[int]) -> None:
        other = self.copy()
        for token_id in token_ids:
            self.masks.fill([Constraint(other, ())])
            if other.is_complete or other.error is not None:
                return
            other.take(token_id)

    def note_mask(self) -> None:
        """The mask of the next token has been made."""
        self._has_mask = True

    def renew_if_exhausted(self) -> bool:
        """After an error: go on with a lexer that has room, if it was for want of that."""
        return any(words in (self.error or "") for words in EXHAUSTED) and self._renew()

    def _renew(self) -> bool:
        if not self._grammar.renew(self._generation):
            return False
        self._begin()
        return True

    def _begin(self) -> None:
        self._generation, self._root = self._grammar.begin()
        self.library = self._root.deep_copy()
        self._has_mask = False
        for token_id in self._taken:
            self._refuel()
            self.library.consume_token(token_id)

    def _refuel(self) -> None:
        """The lexer has fuel from one mask to the next, also for tokens that are taken: make a mask
        that it knows.
        """
        self._root.deep_copy().compute_bitmask()


class LibraryMasks:
    """`Masks`, made on several threads if they are much work and there are cores for it."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // WORD_BITS)
        self._threads = LLExecutor(num_threads=min(MAX_THREADS, os.cpu_count() or 1))
        self._seconds = ALONE_SECONDS  # a mask, as of late

    def fill(self, constraints: Sequence[Constraint]) -> np.ndarray:
        masks = np.zeros((len(constraints), self._num_words), np.int32)
        self._compute([constraint.matcher.library for constraint in constraints], masks)  # type: ignore[attr-defined]
        for mask, constraint in zip(masks, constraints, strict=True):
            constraint.matcher.note_mask()  # type: ignore[attr-defined]
            if constraint.matcher.error is not None and not self._fill_anew(mask, constraint.matcher):
                mask[:] = 0
        banned = [constraint.banned_ends for constraint in constraints]
        for ends in {tuple(each) for each in banned if each}:
            for row in np.flatnonzero(_has_any(masks, ends)):
                if tuple(banned[row]) == ends:
                    _ban(masks[row], ends)
        return masks

    def _compute(self, matchers: Sequence[LLMatcher], masks: np.ndarray) -> None:
        address, size = masks.ctypes.data, masks.strides[0]
        num_alone = len(matchers) if len(matchers) * self._seconds <= ALONE_SECONDS else 1
        started = time.thread_time()
        for row, matcher in enumerate(matchers[:num_alone]):
            matcher.unsafe_compute_mask_ptr(address + row * size, size)
        seconds = (time.thread_time() - started) / num_alone
        self._seconds += (seconds - self._seconds) * NEWEST
        if num_alone < len(matchers):
            rows = [(matcher, row) for row, matcher in enumerate(matchers[num_alone:], num_alone)]
            self._threads.unsafe_compute_mask_ptr(rows, address, size, len(masks))

    def _fill_anew(self, mask: np.ndarray, matcher: Any) -> bool:
        """Whether the matcher's mask [W] could be made with another lexer: at first one that others
        may have filled again meanwhile, then its own.
        """
        for _ in range(2):
            if not matcher.renew_if_exhausted():
                return False
            matcher.library.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            if matcher.error is None:
                return True
        return False


def _has_any(masks: np.ndarray, token_ids: Sequence[int]) -> np.ndarray:
    """[M]: not 0 where a mask has one of the tokens."""
    words = masks.view(np.uint32)
    found = np.zeros(len(masks), np.uint32)
    for token_id in token_ids:
        found |= words[:, token_id // WORD_BITS] & np.uint32(1 << token_id % WORD_BITS)
    return found


def _ban(mask: np.ndarray, token_ids: Sequence[int]) -> None:
    """Take tokens out of mask [W] int32, unless that leaves none."""
    before = mask.copy()
    words = mask.view(np.uint32)
    for token_id in token_ids:
        words[token_id // WORD_BITS] &= np.uint32(~(1 << token_id % WORD_BITS) & 0xFFFFFFFF)
    if not mask.any():
        mask[:] = before
