"""Logits of the sampled rows -> a token a row, and logprobs for the rows that want them.

The order, as the field has it: raw logprobs are of the logits as the model gave them; then, only
for the rows that ask, the steps of STEPS; then temperature, top-k, top-p, min-p and the draw, which
are one op.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from engine.sampling_columns import SamplingColumns
from engine.worker.cache.token_history import Histories
from engine.worker.device.transfer import upload
from ops.interface import Draws, Ops
from ops.logits.allowed import apply_allowed
from ops.logits.bias import apply_bans, apply_bias


@dataclass(frozen=True, slots=True)
class Step:
    """What changes the logits of rows, in place and by nothing but a row's own logits and columns.

    It is skipped where the first of its columns is empty: no row asks for it.
    """

    apply: Callable[..., None] | str  # (logits [R, V] float32, *columns); a name: the backend's op
    columns: tuple[str, ...]  # of `SamplingColumns`
    takes: Literal["", "histories", "last_ids"] = ""  # before the columns, of `sample`


PENALTIES = ("history_num_prompt", "presence_penalty", "frequency_penalty", "repetition_penalty")
# In this order. min_tokens, and bad words after known tokens, are biases of -inf.
STEPS = (
    Step("apply_mask", ("mask_starts", "mask_words")),
    Step("apply_mask", ("allowed_mask_starts", "allowed_mask_words")),
    Step(apply_allowed, ("allowed_starts", "allowed_ids")),
    Step(apply_bias, ("bias_starts", "bias_ids", "bias_values")),
    Step(apply_bans, ("ban_starts", "ban_last_ids", "ban_ids"), takes="last_ids"),
    Step("apply_penalties", PENALTIES, takes="histories"),
)
DRAW = ("temperature", "top_k", "top_p", "min_p", "seed", "choice", "position")  # as `Ops.sample` takes them
_NO_FLOATS, _NO_IDS = np.empty(0, np.float32), np.empty(0, np.int32)
_RAGGED = {
    "bias_starts": ("bias_ids", "bias_values"),
    "ban_starts": ("ban_last_ids", "ban_ids"),
    "allowed_starts": ("allowed_ids",),
    "allowed_mask_starts": ("allowed_mask_words",),
    "mask_starts": ("mask_words",),
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
    is_in_ring: ClassVar[bool] = False  # of drawn tokens: see `PackedSample`


@dataclass(frozen=True, slots=True)
class PackedSample:
    """Of R rows, the first of those that the graph is for."""

    words: Tensor  # [2 or 4, *] int32: tokens, whether they are any, and their logprobs (float32 bits) and ranks
    token_ids: Tensor  # [R] int32, in the ring of drawn tokens
    is_in_ring = True


def sample(
    logits: Tensor,
    columns: SamplingColumns,
    ops: Ops,
    num_top: int | None,
    histories: Histories | None = None,
    last_ids: Tensor | None = None,
) -> Sampled:
    """logits [R, V] float32, which are changed. num_top is K; None: no row wants logprobs.
    `histories`: if any row has a penalty. last_ids [R] int32: the tokens before, if any row has
    bans that depend on them.

    Nothing here waits for the device: what is done depends on the columns, and never on the logits.
    """
    wanted = upload(_wanted(columns), logits.device)
    raw = logits[wanted["logprob_rows"]] if num_top is not None else None
    taken = {"": (), "histories": histories or (), "last_ids": (last_ids,)}
    for step in _steps(columns):
        apply = getattr(ops, step.apply) if isinstance(step.apply, str) else step.apply
        apply(logits, *taken[step.takes], *(wanted[name] for name in step.columns))
    token_ids, is_finite = split(choose(logits, wanted, ops, draws_of(columns)))
    if raw is None or num_top is None:
        return without_logprobs(token_ids, is_finite)
    return Sampled(token_ids, is_finite, *spread_logprobs(raw, wanted["logprob_rows"], token_ids, ops, num_top))


def choose(logits: Tensor, wanted: dict[str, Tensor], ops: Ops, draws: Draws) -> Tensor:
    """As `Ops.sample`, the target where there is one; `wanted`: the columns of DRAW, and of targets
    if any.
    """
    columns = [wanted[name] for name in DRAW]
    if "free_rows" not in wanted:
        return ops.sample(logits, *columns, draws=draws)
    tokens, rows = wanted["target_ids"].clone(), wanted["free_rows"]
    if len(rows):
        tokens[rows] = ops.sample(logits[rows], *columns, draws=draws)[0]
    is_finite = logits.amax(dim=1).isfinite()
    return torch.stack((torch.where(is_finite, tokens, 0).int(), is_finite.int()))


def split(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Of what `choose` returns: token_ids [R] int32, is_finite [R] bool."""
    return drawn[0], drawn[1].bool()


def is_common(columns: SamplingColumns) -> bool:
    """Whether every row is drawn from its logits as they are, but for penalties, or wants the
    logprob of its token, but no others'.
    """
    others = [step for step in _steps(columns) if step.columns is not PENALTIES]
    most_logprobs = 0 if has_penalties(columns) else 1
    return not (others or columns.has_target.any() or (columns.logprob_counts > most_logprobs).any())


def has_penalties(columns: SamplingColumns) -> bool:
    """Whether any row has one."""
    return len(columns.history_num_prompt) > 0


def draws_of(columns: SamplingColumns) -> Draws:
    """What the rows ask for at most."""
    if not columns.temperature.any():
        return "greedy"
    is_filtered = columns.top_k.any() or columns.min_p.any() or (columns.top_p < 1).any()
    return "any" if is_filtered else "unfiltered"


def num_top_logprobs(columns: SamplingColumns) -> int | None:
    """The K of a step: how many most likely tokens its rows want at most; None if no row wants
    logprobs at all.
    """
    most = int(columns.logprob_counts.max(initial=0))
    return most - 1 if most else None


def take_rows(columns: SamplingColumns, start: int, stop: int) -> SamplingColumns:
    """The columns of rows start:stop."""
    if start == 0 and stop == len(columns.seed):
        return columns
    part = {field.name: getattr(columns, field.name)[start:stop] for field in fields(columns)}
    for starts_name, value_names in _RAGGED.items():
        starts = getattr(columns, starts_name)
        first, last = (starts[start], starts[stop]) if len(starts) else (0, 0)
        part[starts_name] = starts[start : stop + 1] - first if last > first else starts[:0]
        part |= {name: getattr(columns, name)[first:last] for name in value_names}
    return SamplingColumns(**part)


def _wanted(columns: SamplingColumns) -> dict[str, np.ndarray]:
    """What of the columns the step's rows need on the device; those of the draw are of the rows
    without a target.
    """
    wanted = {name: getattr(columns, name) for name in DRAW}
    if columns.has_target.any():
        free = np.flatnonzero(~columns.has_target)
        wanted = {name: column[free] for name, column in wanted.items()}
        wanted |= {"free_rows": free, "target_ids": columns.target_ids}
    wanted["seed"] = wanted["seed"].view(np.int64)
    for step in _steps(columns):
        wanted |= {name: columns.whole(name) for name in step.columns}
    return wanted | {"logprob_rows": np.flatnonzero(columns.logprob_counts)}


def _steps(columns: SamplingColumns) -> list[Step]:
    """Those that a row asks for."""
    return [step for step in STEPS if len(getattr(columns, step.columns[0]))]


def spread_logprobs(
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


def without_logprobs(token_ids: Tensor, is_finite: Tensor) -> Sampled:
    """Of a step none of whose rows wants any."""
    device = token_ids.device
    return Sampled(
        token_ids,
        is_finite,
        torch.empty(0, dtype=torch.float32, device=device),
        torch.empty(0, dtype=torch.int32, device=device),
        torch.empty(0, 0, dtype=torch.int32, device=device),
        torch.empty(0, 0, dtype=torch.float32, device=device),
    )


def unpacked(words: np.ndarray, num_rows: int) -> list[np.ndarray]:
    """The columns of `Sampled`, of a packed sample's words on the host."""
    token_ids, is_finite, *told = words[:, :num_rows]
    logprobs, ranks = (told[0].view(np.float32), told[1]) if told else (_NO_FLOATS, _NO_IDS)
    width = (num_rows if told else 0, 0)
    return [token_ids, is_finite.astype(np.bool_), logprobs, ranks, _NO_IDS.reshape(width), _NO_FLOATS.reshape(width)]
