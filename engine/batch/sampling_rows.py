"""The columns of a step's sampled rows: from their requests' parameters and their sequences'
tokens.
"""

from collections.abc import Sequence as Seq
from collections.abc import Sized
from itertools import chain

import numpy as np

from engine.batch.packed import IF_USED, OF_EVERY_STEP, PARAMS
from engine.ragged import starts_of
from engine.sampling_columns import SamplingColumns
from engine.scheduling.bans import banned_now, banned_pairs
from engine.scheduling.sequence import Sequence, SequenceGroup
from engine.scheduling.token_sets.requested import NO_PAIRS, NO_WORDS

# A sampled row: its sequence, the position of its token, and that token if it is given, not
# sampled: a prompt's, or one that ends reasoning.
SampledRow = tuple[SequenceGroup, Sequence, int, int, int | None]


def plain_columns(params: Seq[bytes], choices: Seq[int], positions: np.ndarray) -> SamplingColumns:
    """Of rows that have no others. `params`: see `pack_params`."""
    packed = np.frombuffer(b"".join(params), PARAMS)
    columns = {name: packed[name].copy() for name in OF_EVERY_STEP}
    return SamplingColumns(choice=np.array(choices, np.int32), position=positions, **columns)


def sampling_columns(rows: list[SampledRow]) -> SamplingColumns:
    packed = np.frombuffer(b"".join([row[0].packed_params for row in rows]), PARAMS)
    columns = {name: packed[name].copy() for name in OF_EVERY_STEP}
    columns["choice"] = np.array([row[2] for row in rows], np.int32)
    columns["position"] = np.array([row[3] for row in rows], np.int32)
    if any([row[0].wants_rare_columns or row[4] is not None for row in rows]):
        columns |= {name: packed[name].copy() for name, plain in IF_USED.items() if (packed[name] != plain).any()}
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
