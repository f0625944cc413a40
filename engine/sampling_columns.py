"""The sampling parameters of a step's rows, in flat arrays."""
# ruff: noqa: RUF009  # the defaults are calls that make fields

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import numpy as np


def always(dtype: type[np.generic], *, plain: float = 0) -> Any:
    """A column of every step; `plain` is its value for a row that does not use it."""
    return field(metadata={"dtype": np.dtype(dtype), "plain": plain})


def if_used(dtype: type[np.generic], *, plain: float = 0) -> Any:
    """A column that is empty, and costs nothing, in a step whose rows all have its plain value."""
    nothing = np.empty(0, dtype)
    return field(default_factory=lambda: nothing, metadata={"dtype": nothing.dtype, "plain": plain})


def ragged(dtype: type[np.generic] = np.int32) -> Any:
    """A flat array, or its `starts`: both are empty in a step whose rows have nothing in it."""
    nothing = np.empty(0, dtype)
    return field(default_factory=lambda: nothing)


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """A row per sampled row [R]; ragged columns as `starts` [R + 1] into flat arrays.

    A column that is called as a field of `SamplingParams` holds that field
    (`engine/batch/packed.py`).
    """

    temperature: np.ndarray = always(np.float32)  # 0 = greedy
    top_k: np.ndarray = always(np.int32)  # 0 = all
    top_p: np.ndarray = always(np.float32, plain=1)  # 1 = all
    min_p: np.ndarray = always(np.float32)  # 0 = all
    seed: np.ndarray = always(np.uint64)
    choice: np.ndarray = always(np.int32)  # which of a request's n samples
    position: np.ndarray = always(np.int32)  # the absolute position of the token to be sampled
    # 0: no logprobs wanted; 1 + k: those of the sampled token and of the k most likely ones.
    logprob_counts: np.ndarray = always(np.int32)
    # The row's token is given (a prompt token, or one that ends reasoning), not sampled.
    has_target: np.ndarray = if_used(np.bool_)
    target_ids: np.ndarray = if_used(np.int32)
    # The number of what a request allows, and adds to logits, at every position: a set that a step
    # has brought (`ExecuteModelRequest.set_changes`).
    token_sets: np.ndarray = if_used(np.int32)  # 0 = none
    # Of rows that a grammar constrains: bit t of its words is whether token t may be sampled. They
    # come late (`engine.step.StepMasks`): a step is sent without.
    mask_starts: np.ndarray = ragged()
    mask_words: np.ndarray = ragged()
    # Only these may be sampled, where a row names any: ids or, where they are fewer numbers, a mask
    # as above. Not sent: `SetCopies` adds them.
    allowed_starts: np.ndarray = ragged()
    allowed_ids: np.ndarray = ragged()
    allowed_mask_starts: np.ndarray = ragged()
    allowed_mask_words: np.ndarray = ragged()
    # Added to logits; -inf bans the token (min_tokens, bad_words). What is the same at every
    # position of a request is not sent: likewise.
    bias_starts: np.ndarray = ragged()
    bias_ids: np.ndarray = ragged()
    bias_values: np.ndarray = ragged(np.float32)
    # Banned where the token before, which the driver may not know yet, is this one (bad_words).
    ban_starts: np.ndarray = ragged()
    ban_last_ids: np.ndarray = ragged()
    ban_ids: np.ndarray = ragged()
    # Of rows with a penalty: how many of the `position` tokens so far are the prompt's. The tokens
    # themselves lie beside their keys and values (`engine.worker.cache.token_history`).
    history_num_prompt: np.ndarray = if_used(np.int32)  # 0 = no penalty
    presence_penalty: np.ndarray = if_used(np.float32)  # 0 = none
    frequency_penalty: np.ndarray = if_used(np.float32)  # 0 = none
    repetition_penalty: np.ndarray = if_used(np.float32, plain=1)  # 1 = none

    @classmethod
    def of_plain_rows(cls, num_rows: int, **others: np.ndarray) -> "SamplingColumns":
        """Columns for greedy sampling of every row, except for `others`."""
        return cls(**({name: _plain_column(name, num_rows) for name in ALWAYS} | others))

    def whole(self, name: str) -> np.ndarray:
        """The column with a value for every row, also if none of them uses it; ragged ones as they
        are.
        """
        column: np.ndarray = getattr(self, name)
        return column if len(column) or name not in PLAIN else _plain_column(name, len(self.seed))


_FIELDS = {column.name: column for column in fields(SamplingColumns)}
DTYPES = {name: column.metadata["dtype"] for name, column in _FIELDS.items() if column.metadata}
PLAIN = {name: column.metadata["plain"] for name, column in _FIELDS.items() if column.metadata}
ALWAYS = tuple(name for name in PLAIN if _FIELDS[name].default_factory is MISSING)


def _plain_column(name: str, num_rows: int) -> np.ndarray:
    return np.full(num_rows, PLAIN[name], DTYPES[name])
