"""The sets of tokens that the driver's running requests have, as a rank knows them."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from engine.ragged import starts_of
from engine.sampling_columns import SamplingColumns
from engine.step import NO_IDS, ExecuteModelRequest


class Copy(NamedTuple):
    """What a request allows and adds at every position: see `ExecuteModelRequest`."""

    ids: np.ndarray  # [*] int32
    words: np.ndarray  # [*] int32
    bias_ids: np.ndarray  # [*] int32
    bias_values: np.ndarray  # [*] float32


NOTHING = Copy(NO_IDS, NO_IDS, NO_IDS, np.empty(0, np.float32))


class SetCopies:
    """By number. Every step must come by, in order. With another epoch they begin anew: the driver
    sends what its requests have again.
    """

    def __init__(self) -> None:
        self.sets: dict[int, Copy] = {}
        self._epoch: int | None = None

    def read(self, request: ExecuteModelRequest) -> ExecuteModelRequest:
        """The step, with what its rows' sets hold."""
        if request.epoch != self._epoch:
            self.sets.clear()
            self._epoch = request.epoch
        self._change(request)
        columns = request.sampling
        if not len(columns.token_sets):
            return request
        named = [self.sets[number] if number else NOTHING for number in columns.token_sets.tolist()]
        found = _allowed(named) | _biases(named, columns)
        return replace(request, sampling=replace(columns, token_sets=columns.token_sets[:0], **found))

    def _change(self, request: ExecuteModelRequest) -> None:
        start = 0
        for number, num_ids, num_words, num_biases in request.set_changes.tolist():
            ends = start + np.cumsum([num_ids, num_words, num_biases, num_biases])
            self.sets.pop(number, None)
            if ends[-1] > start:  # a copy: the step's memory is not kept
                kept = request.set_words[start : ends[-1]].copy()
                ids, words, bias_ids, values, _ = np.split(kept, ends - start)
                self.sets[number] = Copy(ids, words, bias_ids, values.view(np.float32))
            start = int(ends[-1])


def _allowed(named: list[Copy]) -> dict[str, np.ndarray]:
    ids, words = [each.ids for each in named], [each.words for each in named]
    found: dict[str, np.ndarray] = {}
    if any(map(len, ids)):
        found |= {"allowed_starts": _starts(ids), "allowed_ids": np.concatenate(ids)}
    if any(map(len, words)):
        found |= {"allowed_mask_starts": _starts(words), "allowed_mask_words": np.concatenate(words)}
    return found


def _biases(named: list[Copy], columns: SamplingColumns) -> dict[str, np.ndarray]:
    """A row's own, of this position, and those of its set."""
    of_sets = [each.bias_ids for each in named]
    if not any(map(len, of_sets)):
        return {}
    own_starts = columns.bias_starts if len(columns.bias_starts) else np.zeros(len(named) + 1, np.int32)
    ids = np.split(columns.bias_ids, own_starts[1:-1])
    values = np.split(columns.bias_values, own_starts[1:-1])
    return {
        "bias_starts": own_starts + _starts(of_sets),
        "bias_ids": np.concatenate(list(chain.from_iterable(zip(ids, of_sets, strict=True)))),
        "bias_values": np.concatenate(
            list(chain.from_iterable(zip(values, [each.bias_values for each in named], strict=True)))
        ),
    }


def _starts(arrays: Seq[np.ndarray]) -> np.ndarray:
    return starts_of([len(array) for array in arrays])
