"""The columns of a step's sampled rows: from their requests' parameters and their sequences'
tokens.
"""

from collections.abc import Sequence as Seq
from collections.abc import Sized
from dataclasses import fields
from itertools import chain
from typing import Any

import numpy as np

from engine.ragged import starts_of
from engine.sampling_columns import ALWAYS, DTYPES, PLAIN, SamplingColumns
from engine.sampling_params import SamplingParams
from engine.scheduling.bans import WORD_BITS, banned_ids, banned_pairs
from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.scheduling.token_sets import ANY, NO_PAIRS, NO_WORDS, BadWords, PackedAllowed

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


def pack_allowed(params: SamplingParams, vocab_size: int) -> PackedAllowed:
    """A request's allowed_token_ids, which are below `vocab_size`."""
    if not params.allowed_token_ids:
        return ANY
    ids = np.array(params.allowed_token_ids, np.int32)
    num_words = -(-vocab_size // WORD_BITS)
    if len(ids) <= num_words:
        return PackedAllowed(ids=ids)
    bits = np.zeros(num_words * WORD_BITS, np.bool_)
    bits[ids] = True
    return PackedAllowed(words=np.packbits(bits, bitorder="little").view(np.int32))


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
        columns |= _targets(rows, columns["logprob_counts"]) | _history(rows) | _allowed(rows)
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
    """logit_bias as requested, and -inf for tokens that are banned now: stop tokens before
    min_tokens, the last token of a bad word.
    """
    if not any([row[0].has_bias for row in rows]):
        return {}
    biases = [
        _biases(group, seq, position) if group.has_bias and target is None else []
        for group, seq, _, position, target in rows
    ]
    if not any(biases):
        return {}
    starts, ids = _ragged([[token_id for token_id, _ in row] for row in biases])
    values = np.array([value for row in biases for _, value in row], np.float32)
    return {"bias_starts": starts, "bias_ids": ids, "bias_values": values}


def _biases(group: SequenceGroup, seq: Sequence, position: int) -> list[tuple[int, float]]:
    banned = banned_ids(group, seq, position)
    biases = [(token_id, bias) for token_id, bias in (group.params.logit_bias or {}).items() if token_id not in banned]
    return biases + [(token_id, float("-inf")) for token_id in sorted(banned)]


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


def _allowed(rows: list[SampledRow]) -> dict[str, np.ndarray]:
    if all([row[0].packed_allowed is ANY for row in rows]):
        return {}
    packed = [group.packed_allowed if target is None else ANY for group, _, _, _, target in rows]
    ids, words = [each.ids for each in packed], [each.words for each in packed]
    columns: dict[str, np.ndarray] = {}
    if any(map(len, ids)):
        columns |= {"allowed_starts": _starts(ids), "allowed_ids": np.concatenate(ids)}
    if any(map(len, words)):
        columns |= {"allowed_mask_starts": _starts(words), "allowed_mask_words": np.concatenate(words)}
    return columns


def _ragged(lists: Seq[Seq[int]]) -> tuple[np.ndarray, np.ndarray]:
    return _starts(lists), np.array(list(chain.from_iterable(lists)), np.int32)


def _starts(lists: Seq[Sized]) -> np.ndarray:
    return starts_of([len(row) for row in lists])
