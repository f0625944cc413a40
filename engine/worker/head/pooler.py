"""Sums of hidden states, for embeddings."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.pooling import LARGEST, UNIT
from engine.worker.device.transfer import upload

MAX_ROWS = 256  # at once: they take 20 bytes a number


@dataclass(frozen=True, slots=True)
class Pooled:
    """As in `SamplerOutput`, still on the device."""

    sums: Tensor  # [P, D] int64
    are_finite: Tensor  # [P] bool


def pool(hidden_states: Callable[[Tensor], Tensor], residual: Tensor, ranges: np.ndarray) -> Pooled:
    """The sums over ranges [P, 2] int32 of the rows of residual [T, D] dtype, each behind the final
    norm, which is `hidden_states`.

    Integers are added: their sum does not depend on the order.
    """
    lengths = ranges[:, 1] - ranges[:, 0]
    owners = np.repeat(np.arange(len(ranges), dtype=np.int64), lengths)
    firsts = np.cumsum(lengths) - lengths
    rows = np.arange(len(owners), dtype=np.int64) + (ranges[:, 0] - firsts)[owners]
    places = upload({"rows": rows, "owners": owners}, residual.device)
    sums = torch.zeros(len(ranges), residual.shape[1], dtype=torch.int64, device=residual.device)
    num_wrong = torch.zeros(len(ranges), dtype=torch.int64, device=residual.device)
    for start in range(0, len(rows), MAX_ROWS):
        some = slice(start, start + MAX_ROWS)
        hidden = hidden_states(residual[places["rows"][some]]).double()
        is_finite = (hidden.abs() < LARGEST).all(dim=1)  # false for NaN
        units = torch.where(is_finite[:, None], hidden / UNIT, 0.0).round().long()
        sums.index_add_(0, places["owners"][some], units)
        num_wrong.index_add_(0, places["owners"][some], (~is_finite).long())
    return Pooled(sums, num_wrong == 0)
