"""Logits of the sampled rows -> a token a row, and logprobs for the rows that want them.

The order of the steps, as the field has it: raw logprobs are of the logits as the model gave them; then, only for the rows that
ask, allowed token ids, biases (logit_bias, bad words and min_tokens are biases of -inf), penalties; then temperature, top-k,
top-p, min-p and the draw, which are one op.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from engine.request import SamplingColumns
from ops.interface import Ops

_RAGGED = {
    "history_starts": ("history_ids",),
    "bias_starts": ("bias_ids", "bias_values"),
    "allowed_starts": ("allowed_ids",),
}


@dataclass(frozen=True, slots=True)
class Sampled:
    """As in `SamplerOutput`, still on the device."""

    token_ids: Tensor  # [R] int32
    is_finite: Tensor  # [R] bool
    logprobs: Tensor  # [R] or [0] float32
    ranks: Tensor  # [R] or [0] int32
    top_ids: Tensor  # [R, K] or [0, 0] int32
    top_logprobs: Tensor  # [R, K] or [0, 0] float32


def sample(logits: Tensor, columns: SamplingColumns, ops: Ops, num_top: int | None) -> Sampled:
    """logits [R, V] float32, which are changed. num_top is K; None: no row wants logprobs."""
    rows = to_device(np.flatnonzero(columns.logprob_counts), logits.device)
    raw = logits[rows] if num_top is not None else None
    _adjust(logits, columns, ops)
    # A row of nothing but -inf has everything banned; NaN spreads into the maximum.
    is_finite = logits.amax(dim=1).isfinite()
    if not bool(is_finite.all()):
        logits[~is_finite] = 0.0
    token_ids = torch.where(is_finite, _draw(logits, columns, ops), 0).int()
    if raw is None or num_top is None:
        return Sampled(token_ids, is_finite, *_no_logprobs(logits.device))
    return Sampled(token_ids, is_finite, *_logprobs(raw, rows, token_ids, ops, num_top))


def num_top_logprobs(columns: SamplingColumns) -> int | None:
    """The K of a step: how many most likely tokens its rows want at most; None if no row wants logprobs at all."""
    most = int(columns.logprob_counts.max(initial=0))
    return most - 1 if most else None


def take_rows(columns: SamplingColumns, start: int, stop: int) -> SamplingColumns:
    """The columns of rows start:stop."""
    part = {field.name: getattr(columns, field.name)[start:stop] for field in fields(columns)}
    for starts_name, value_names in _RAGGED.items():
        starts = getattr(columns, starts_name)
        if len(starts):
            part[starts_name] = starts[start : stop + 1] - starts[start]
            part |= {name: getattr(columns, name)[starts[start] : starts[stop]] for name in value_names}
    return SamplingColumns(**part)


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """The array as a contiguous tensor; on the CPU it may be the same memory."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def _adjust(logits: Tensor, columns: SamplingColumns, ops: Ops) -> None:
    device = logits.device
    if len(columns.allowed_ids):
        ops.apply_allowed(logits, to_device(columns.allowed_starts, device), to_device(columns.allowed_ids, device))
    if len(columns.bias_ids):
        ops.apply_bias(
            logits,
            to_device(columns.bias_starts, device),
            to_device(columns.bias_ids, device),
            to_device(columns.bias_values, device),
        )
    if len(columns.history_ids):
        ops.apply_penalties(
            logits,
            to_device(columns.history_starts, device),
            to_device(columns.history_ids, device),
            to_device(columns.history_num_prompt, device),
            to_device(columns.presence_penalty, device),
            to_device(columns.frequency_penalty, device),
            to_device(columns.repetition_penalty, device),
        )


def _draw(logits: Tensor, columns: SamplingColumns, ops: Ops) -> Tensor:
    """A token a row, [R] int32: the target where there is one."""
    device = logits.device
    if not columns.has_target.any():
        return ops.sample(logits, *(to_device(column, device) for column in _draw_columns(columns)))
    tokens = to_device(columns.target_ids, device).clone()
    free = np.flatnonzero(~columns.has_target)
    if len(free):
        rows = to_device(free, device)
        tokens[rows] = ops.sample(logits[rows], *(to_device(column[free], device) for column in _draw_columns(columns)))
    return tokens


def _draw_columns(columns: SamplingColumns) -> tuple[np.ndarray, ...]:
    """In the order of `Ops.sample`."""
    seed = columns.seed.view(np.int64)
    return columns.temperature, columns.top_k, columns.top_p, columns.min_p, seed, columns.choice, columns.position


def _logprobs(
    raw: Tensor, rows: Tensor, token_ids: Tensor, ops: Ops, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the raw logits of `rows`, spread over all R rows; zeros elsewhere."""
    num_rows, device = token_ids.shape[0], token_ids.device
    spread = (
        torch.zeros(num_rows, dtype=torch.float32, device=device),
        torch.zeros(num_rows, dtype=torch.int32, device=device),
        torch.zeros(num_rows, num_top, dtype=torch.int32, device=device),
        torch.zeros(num_rows, num_top, dtype=torch.float32, device=device),
    )
    if len(rows):
        for whole, part in zip(spread, ops.token_logprobs(raw, token_ids[rows], num_top), strict=True):
            whole[rows] = part
    return spread


def _no_logprobs(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty(0, dtype=torch.float32, device=device),
        torch.empty(0, dtype=torch.int32, device=device),
        torch.empty(0, 0, dtype=torch.int32, device=device),
        torch.empty(0, 0, dtype=torch.float32, device=device),
    )
