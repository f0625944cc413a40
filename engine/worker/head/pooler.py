"""Sums of hidden states, for embeddings."""

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


def pool(hidden: Tensor, ranges: np.ndarray) -> Pooled:
    """The sums over ranges [P, 2] int32 of the rows of hidden [T, D] dtype, which are behind the
    final norm.

    Integers are added: their sum does not depend on the order.
    """
    lengths = ranges[:, 1] - ranges[:, 0]
    owners = np.repeat(np.arange(len(ranges), dtype=np.int64), lengths)
    firsts = np.cumsum(lengths) - lengths
    rows = np.arange(len(owners), dtype=np.int64) + (ranges[:, 0] - firsts)[owners]
    places = upload({"rows": rows, "owners": owners}, hidden.device)
    sums = torch.zeros(len(ranges), hidden.shape[1], dtype=torch.int64, device=hidden.device)
    num_wrong = torch.zeros(len(ranges), dtype=torch.int64, device=hidden.device)
    for start in range(0, len(rows), MAX_ROWS):
        some = slice(start, start + MAX_ROWS)
        states = hidden[places["rows"][some]].double()
        is_finite = (states.abs() < LARGEST).all(dim=1)  # false for NaN
        units = torch.where(is_finite[:, None], states / UNIT, 0.0).round().long()
        sums.index_add_(0, places["owners"][some], units)
        num_wrong.index_add_(0, places["owners"][some], (~is_finite).long())
    return Pooled(sums, num_wrong == 0)
