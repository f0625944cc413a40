"""Compiles for one vocabulary, within limits."""

import threading
import weakref
from collections.abc import Sequence

from llguidance import LLTokenizer

from engine.errors import InvalidRequest
from engine.grammars.grammar import Grammar
from engine.grammars.interface import Matcher
from engine.grammars.matcher import LibraryMasks, LibraryMatcher
from engine.grammars.trials import TrialProcesses
from engine.grammars.vocabulary import of_tokenizer
from engine.structured_outputs import StructuredOutputs
from engine.text.tokenizer import Tokenizer


class Compiler:
    """Thread-safe. Its vocabulary and the processes for trials are made when they are needed."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._of_vocabulary = (tokenizer, vocab_size, eos_token_ids)
        self._vocabulary: LLTokenizer | None = None
        self._masks = LibraryMasks(vocab_size)
        self._trials = TrialProcesses()
        self._making = threading.Lock()
        weakref.finalize(self, self._trials.close)

    def compile(
        self, asked: StructuredOutputs, *, was_accepted: bool = False, first_seconds: float | None = None
    ) -> Matcher:
        """At the grammar's beginning. Raises InvalidRequest, which names the field, if there is no
        such grammar, it allows nothing, or takes too much; more is let pass if it `was_accepted`
        by another engine. GrammarTakesLong: after `first_seconds` of processor time, if any are
        given.
        """
        source = self._trials.source(asked, was_accepted=was_accepted, first_seconds=first_seconds)
        with self._making:
            if self._vocabulary is None:
                self._vocabulary = of_tokenizer(*self._of_vocabulary)
        vocabulary = self._vocabulary
        try:
            return LibraryMatcher(Grammar(source, vocabulary), self._masks)
        except ValueError as error:  # a vocabulary that cannot spell it
            raise InvalidRequest(f"{asked.param} cannot be compiled: {error}", param=asked.param) from None
