"""A compiled grammar, from which matchers begin."""

import threading
import time
from collections import deque

from llguidance import LLMatcher, LLTokenizer

from engine.grammars.source import FUEL, RENEWED_FUEL, STACK, compiled, on_stack, start_on_stack

RENEWABLE_SECONDS = 0.05  # of processor time: what compiles in less is compiled again between two steps
NUM_IN_RESERVE = 2  # of what takes longer, made in advance


class Grammar:
    """Copies of the library's matchers share what states their lexer has reached. Together they may
    reach only so many (`source.limits`), and a mask that takes too much work breaks the lexer for
    all of them. The grammar is then compiled again: how far one answer comes must not depend on
    others of that grammar. Thread-safe.
    """

    def __init__(self, source: str, vocabulary: LLTokenizer) -> None:
        """Raises ValueError if there is no such grammar, or it allows nothing."""
        self._source = source
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._generation = 0
        self._reserve: deque[LLMatcher] = deque()
        self.is_spent = False  # none is in reserve, and making one takes too long here: another grammar has to be made
        self._library, seconds = self._compiled(FUEL)
        self._is_slow = seconds > RENEWABLE_SECONDS
        if self._is_slow:
            self._make_reserve(NUM_IN_RESERVE)

    @property
    def is_renewable(self) -> bool:
        """Whether `renew` is always possible."""
        return not self._is_slow

    def begin(self) -> tuple[int, LLMatcher]:
        """A matcher at the beginning, and the lexer's number."""
        with self._lock:
            return self._generation, self._library.deep_copy()

    def renew(self, generation: int) -> bool:
        """Have a lexer with room: another than that of this number. False if that takes long."""
        with self._lock:
            if self._generation != generation:
                return True
            if not self._is_slow:
                self._library, _ = self._compiled(RENEWED_FUEL)
            elif self._reserve:
                self._library = self._reserve.popleft()
                self._make_reserve(1)
            else:
                self.is_spent = True
                return False
            self._generation += 1
            return True

    def _make_reserve(self, count: int) -> None:
        """In a thread; who needs one before it is made has none."""

        def make() -> None:
            for _ in range(count):
                self._reserve.append(compiled(self._source, self._vocabulary, RENEWED_FUEL))

        # It starts no other thread: none can be started once the process has begun to end.
        start_on_stack(STACK, make, "grammar-reserve")

    def _compiled(self, fuel: int) -> tuple[LLMatcher, float]:
        def compile_timed() -> tuple[LLMatcher, float]:
            begin = time.thread_time()
            library = compiled(self._source, self._vocabulary, fuel)
            return library, time.thread_time() - begin

        return on_stack(STACK, compile_timed)
