"""The columns of a step's sampled rows: from their requests' parameters and their sequences'
tokens.
"""

from collections.abc import Iterable, Sized
from collections.abc import Sequence as Seq
from dataclasses import fields
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np

from engine.ragged import starts_of
from engine.sampling_columns import ALWAYS, ANY, DTYPES, PLAIN, SamplingColumns, TokenSet
from engine.sampling_params import SamplingParams
from engine.scheduling.bad_words import NO_PAIRS, NO_WORDS, BadWords
from engine.scheduling.bans import WORD_BITS, banned_now, banned_pairs
from engine.scheduling.sequence import Sequence, SequenceGroup

# A sampled row: its sequence, the position of its token, and that token if it is given, not
# sampled: a prompt's, or one that ends reasoning.
SampledRow = tuple[SequenceGroup, Sequence, int, int, int | None]

# The columns that stay the same for all rows of a request: packed once, joined every step.
_OF_PARAMS = {column.name for column in fields(SamplingColumns)} & {param.name for param in fields(SamplingParams)}
PARAMS = np.dtype([(name, dtype) for name, dtype in DTYPES.items() if name in _OF_PARAMS or name == "logprob_counts"])
_OF_EVERY_STEP = [name for name in PARAMS.names or () if name in ALWAYS]
_IF_USED = {name: PLAIN[name] for name in PARAMS.names or () if name not in ALWAYS}


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


def pack_set(params: SamplingParams, vocab_size: int, bad_words: BadWords = NO_WORDS) -> TokenSet:
    """What a request allows and adds at every position; its allowed_token_ids are below
    `vocab_size`.
    """
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


def pack_bad_words(words: list[list[int]]) -> BadWords:
    """A request's bad words as token ids."""
    return BadWords(words) if words else NO_WORDS


def uses_rare_columns(params: SamplingParams) -> bool:
    """Whether rows of the request have any of the columns that most steps leave empty."""
    return (
        any(_value(params, name) != plain for name, plain in _IF_USED.items())
        or bool(params.logit_bias or params.bad_words or params.min_tokens or params.allowed_token_ids)
        or params.prompt_logprobs is not None
    )


def _value(params: SamplingParams, name: str) -> Any:
    """A column's value for a parameter; the neutral value for None."""
    value = getattr(params, name)
    return PLAIN[name] if value is None else value


def sampling_columns(rows: list[SampledRow]) -> SamplingColumns:
    packed = np.frombuffer(b"".join([row[0].packed_params for row in rows]), PARAMS)
    columns = {name: packed[name].copy() for name in _OF_EVERY_STEP}
    columns["choice"] = np.array([row[2] for row in rows], np.int32)
    columns["position"] = np.array([row[3] for row in rows], np.int32)
    if any([row[0].wants_rare_columns or row[4] is not None for row in rows]):
        columns |= {name: packed[name].copy() for name, plain in _IF_USED.items() if (packed[name] != plain).any()}
        columns |= _targets(rows, columns["logprob_counts"]) | _history(rows) | _sets(rows)
        columns |= _bias(rows) | _bans(rows)
    return SamplingColumns(**columns)


def _targets(rows: list[SampledRow], logprob_counts: np.ndarray) -> dict[str, np.ndarray]:
    """Rows whose token is given; writes how many logprobs those of a prompt want, or of a
    request for logprobs.
    """
    targets = [row[4] for row in rows]
    if all([target is None for target in targets]):
        return {}
    has_target = np.array([target is not None for target in targets], np.bool_)
    for index in np.flatnonzero(has_target):
        group, seq, _, position, _ = rows[index]
        if position < seq.num_prompt_tokens or group.pooling is not None:
            logprob_counts[index] = 1 + (group.params.prompt_logprobs or 0)
    return {"has_target": has_target, "target_ids": np.array([target or 0 for target in targets], np.int32)}


def _history(rows: list[SampledRow]) -> dict[str, np.ndarray]:
    """Of the rows with a penalty; workers have their tokens."""
    num_prompt = [row[1].num_prompt_tokens if row[0].has_penalties and row[4] is None else 0 for row in rows]
    return {"history_num_prompt": np.array(num_prompt, np.int32)} if any(num_prompt) else {}


def _bias(rows: list[SampledRow]) -> dict[str, np.ndarray]:
    """-inf for tokens that are banned now: stop tokens before min_tokens, the last token of a bad
    word of several.
    """
    if not any([row[0].has_bias for row in rows]):
        return {}
    banned = [
        sorted(banned_now(group, seq, position)) if group.has_bias and target is None else []
        for group, seq, _, position, target in rows
    ]
    if not any(banned):
        return {}
    starts, ids = _ragged(banned)
    return {"bias_starts": starts, "bias_ids": ids, "bias_values": np.full(len(ids), -np.inf, np.float32)}


def _bans(rows: list[SampledRow]) -> dict[str, np.ndarray]:
    """Of rows whose last token is not known yet: what a bad word bans after which one."""
    if not any([row[0].bad_words is not NO_WORDS for row in rows]):
        return {}
    pairs = [
        banned_pairs(group, seq, position) if target is None else NO_PAIRS for group, seq, _, position, target in rows
    ]
    if not any(map(len, pairs)):
        return {}
    last_ids, ids = np.concatenate(pairs).T.copy()
    return {"ban_starts": _starts(pairs), "ban_last_ids": last_ids, "ban_ids": ids}


def _sets(rows: list[SampledRow]) -> dict[str, np.ndarray]:
    """By number; workers have what is in them."""
    numbers = [row[0].set_number if row[4] is None else 0 for row in rows]
    return {"token_sets": np.array(numbers, np.int32)} if any(numbers) else {}


def _ragged(lists: Seq[Seq[int]]) -> tuple[np.ndarray, np.ndarray]:
    return _starts(lists), np.array(list(chain.from_iterable(lists)), np.int32)


def _starts(lists: Seq[Sized]) -> np.ndarray:
    return starts_of([len(row) for row in lists])
