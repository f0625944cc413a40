"""What a sampling graph leaves of a step, as it comes to the host: one small array."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

_NO_FLOATS, _NO_IDS = np.empty(0, np.float32), np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class PackedSample:
    """Of R rows, the first of those that the graph is for."""

    words: Tensor  # [2 or 4, *] int32: tokens, whether they are any, and their logprobs (float32 bits) and ranks
    token_ids: Tensor  # [R] int32, in the ring of drawn tokens
    is_in_ring = True


def unpacked(words: np.ndarray, num_rows: int) -> list[np.ndarray]:
    """The columns of `Sampled`, of words on the host."""
    token_ids, is_finite, *told = words[:, :num_rows]
    logprobs, ranks = (told[0].view(np.float32), told[1]) if told else (_NO_FLOATS, _NO_IDS)
    width = (num_rows if told else 0, 0)
    return [token_ids, is_finite.astype(np.bool_), logprobs, ranks, _NO_IDS.reshape(width), _NO_FLOATS.reshape(width)]
