"""The grammars that requests have asked for lately."""

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
        self._lock = threading.Lock()

    def matcher(self, asked: StructuredOutputs) -> Matcher:
        """At the grammar's beginning; see `Compiler.compile`. Takes seconds for some that were not
        asked for lately.
        """
        with self._lock:
            if (kept := self._kept.get(asked)) is not None:
                self._kept.move_to_end(asked)
                return kept.copy()
            if self._compiler is None:
                # Not imported above: only engines that are asked for a grammar need the library.
                self._compiler = importlib.import_module("engine.grammars.compiler").Compiler(*self._arguments)
        made: Matcher = self._compiler.compile(asked)
        with self._lock:
            self._kept[asked] = made
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return made.copy()
