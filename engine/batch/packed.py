"""What is the same for all rows of a request, packed once."""

from collections.abc import Iterable
from dataclasses import fields
from hashlib import blake2b
from typing import Any

import numpy as np

from engine.sampling_columns import ALWAYS, DTYPES, PLAIN, SamplingColumns
from engine.sampling_params import SamplingParams
from engine.scheduling.bans import WORD_BITS
from engine.scheduling.token_sets.requested import ANY, NO_WORDS, BadWords, TokenSet

# The columns that stay the same for all rows of a request: packed once, joined every step.
_OF_PARAMS = {column.name for column in fields(SamplingColumns)} & {param.name for param in fields(SamplingParams)}
PARAMS = np.dtype([(name, dtype) for name, dtype in DTYPES.items() if name in _OF_PARAMS or name == "logprob_counts"])
OF_EVERY_STEP = [name for name in PARAMS.names or () if name in ALWAYS]
IF_USED = {name: PLAIN[name] for name in PARAMS.names or () if name not in ALWAYS}


def pack_params(params: SamplingParams, seed: int, num_candidates: int) -> bytes:
    """A request's record of `PARAMS`; `num_candidates` is what beam search needs of each row, or
    0.
    """
    if num_candidates:
        logprob_count = 1 + num_candidates
    elif params.logprobs is not None:
        logprob_count = 1 + params.logprobs
    else:
        logprob_count = 0 if params.best_of is None else 1
    own = {"seed": seed, "logprob_counts": logprob_count}
    record = tuple(own[name] if name in own else _value(params, name) for name in PARAMS.names or ())
    return np.array(record, PARAMS).tobytes()


def pack_bad_words(words: list[list[int]]) -> BadWords:
    """A request's bad words as token ids."""
    return BadWords(words) if words else NO_WORDS


def uses_rare_columns(params: SamplingParams) -> bool:
    """Whether rows of the request have any of the columns that most steps leave empty."""
    return (
        any(_value(params, name) != plain for name, plain in IF_USED.items())
        or bool(params.logit_bias or params.bad_words or params.min_tokens or params.allowed_token_ids)
        or params.prompt_logprobs is not None
    )


def _value(params: SamplingParams, name: str) -> Any:
    """A column's value for a parameter; the neutral value for None."""
    value = getattr(params, name)
    return PLAIN[name] if value is None else value


def pack_set(params: SamplingParams, vocab_size: int, bad_words: BadWords = NO_WORDS) -> TokenSet:
    """A request's; its allowed_token_ids are below `vocab_size`."""
    biases = {**(params.logit_bias or {}), **dict.fromkeys(bad_words.always(), float("-inf"))}
    ids, words = _allowed(params.allowed_token_ids, vocab_size)
    bias_ids, bias_values = np.array(list(biases), np.int32), np.array(list(biases.values()), np.float32)
    parts = (ids, words, bias_ids, bias_values)
    if not any(map(len, parts)):
        return ANY
    lengths = np.array([len(part) for part in parts])
    digest = blake2b(b"".join(part.tobytes() for part in (lengths, *parts)), digest_size=16).digest()
    return TokenSet(*parts, digest)


def _allowed(token_ids: Iterable[int] | None, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """As ids, or as the words of a mask; neither if all are."""
    ids, nothing = np.array(token_ids or (), np.int32), np.empty(0, np.int32)
    num_words = -(-vocab_size // WORD_BITS)
    if len(ids) <= num_words:
        return ids, nothing
    bits = np.zeros(num_words * WORD_BITS, np.bool_)
    bits[ids] = True
    return nothing, np.packbits(bits, bitorder="little").view(np.int32)
