"""A cache of the grammars that requests used last."""

import importlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from engine.grammars.interface import Matcher
from engine.structured_outputs import StructuredOutputs
from engine.text.tokenizer import Tokenizer

MAX_KEPT = 128


class Grammars:
    """Keeps what `Compiler` has made, by what was asked for. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._arguments = (tokenizer, vocab_size, eos_token_ids)
        self._compiler: Any = None
        self._kept: OrderedDict[StructuredOutputs, Matcher] = OrderedDict()  # the one used last is the last
        self._making: dict[StructuredOutputs, threading.Lock] = {}
        self._lock = threading.Lock()

    def has(self, asked: StructuredOutputs) -> bool:
        """Whether `matcher` would return at once."""
        kept = self._kept.get(asked)
        return kept is not None and not kept.is_spent

    def matcher(
        self, asked: StructuredOutputs, *, was_accepted: bool = False, first_seconds: float | None = None
    ) -> Matcher:
        """At the grammar's beginning; see `Compiler.compile`. Takes seconds for some that were not
        asked for lately; what several threads ask for is made once.
        """
        with self._lock:
            if (kept := self._taken(asked)) is not None:
                return kept
            if self._compiler is None:
                # Not imported above: only engines that are asked for a grammar need the library.
                self._compiler = importlib.import_module("engine.grammars.compiler").Compiler(*self._arguments)
            making = self._making.setdefault(asked, threading.Lock())
        with making:
            with self._lock:
                if (kept := self._taken(asked)) is not None:
                    return kept
            try:
                made: Matcher = self._compiler.compile(asked, was_accepted=was_accepted, first_seconds=first_seconds)
            finally:
                with self._lock:
                    self._making.pop(asked, None)
            with self._lock:
                self._kept[asked] = made
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
                return made.copy()

    def _taken(self, asked: StructuredOutputs) -> Matcher | None:
        kept = self._kept.get(asked)
        if kept is None or kept.is_spent:
            return None
        self._kept.move_to_end(asked)
        return kept.copy()
