"""Requests that are answered with numbers instead of tokens: embeddings and scores.

A sum over positions must not depend on the chunks in which they are computed. Sums of floating
point do; so each hidden state is rounded once to a multiple of UNIT, and these integers are added,
in any order. The rounding keeps all bits of a float32 from 2^-8 on, and of a bfloat16 from 2^-24.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.errors import InvalidRequest
from engine.sampling_params import SamplingParams

UNIT = 2.0**-32
# Beyond it a hidden state counts as not finite: 2^18 positions of it fill an int64.
LARGEST = 2.0**13

NO_TOKENS = SamplingParams(temperature=0, max_tokens=1)  # of a request with a `Pooling`: nothing is sampled
PoolingType = Literal["last", "mean", "logprobs"]


@dataclass(frozen=True, slots=True)
class Pooling:
    """What a request asks for: the hidden state behind the final norm at its last position ("last")
    or the mean over all positions ("mean"), or what log probabilities `token_ids` have as the
    next token ("logprobs").
    """

    type: PoolingType
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Embedding:
    """How the model makes an embedding of hidden states."""

    type: Literal["last", "mean"] = "last"
    is_normalized: bool = True
    is_all: bool = False  # the model was trained for nothing else: it generates no text

    @property
    def pooling(self) -> Pooling:
        return Pooling(self.type)

    def vector(self, pooled: bytes, dimensions: int | None = None) -> np.ndarray:
        """[dimensions] float32 of what the engine answered: its first numbers (None: all), then
        scaled to length 1 if the model's embeddings are. A vector of zeros stays one.
        """
        vector = values(pooled)[:dimensions]
        if not self.is_normalized:
            return vector
        wide = vector.astype(np.float64)
        length = math.sqrt(math.fsum((wide * wide).tolist()))  # rounded once: the same on every machine
        return (wide / (length or 1.0)).astype(np.float32)


def mean(sums: np.ndarray, num_positions: int) -> bytes:
    """[D] int64 multiples of UNIT -> [D] float32, as they travel."""
    return (sums.astype(np.float64) * UNIT / num_positions).astype("<f4").tobytes()


def values(pooled: bytes) -> np.ndarray:
    """[D] float32."""
    return np.frombuffer(pooled, "<f4")


def check_dimensions(dimensions: int | None, hidden_size: int) -> None:
    """Raises InvalidRequest."""
    if dimensions is not None and dimensions > hidden_size:
        raise InvalidRequest(
            f"dimensions={dimensions} exceeds the {hidden_size} of the model's embeddings",
            param="dimensions",
            code="integer_above_max_value",
        )
