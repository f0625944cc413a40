"""Rotary tables: the frequencies of each kind of context extension, and their cosines and sines by
position.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ops.first_calls import call_first
from parallel.spec.rope import Rope, yarn_magnitude


def cos_sin_table(rope: Rope, head_dim: int, num_positions: int) -> Tensor:
    """[num_positions, head_dim] float32 on the CPU: cosines of each angle, then sines.

    Angles are float32 products, as in the code that models are trained with: at long contexts their
    rounding matters.
    """
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    call_first(torch.cos, torch.sin)
    return torch.cat((angles.cos(), angles.sin()), dim=1) * factor


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Radians a position, [head_dim / 2] float32, and what cosines and sines are multiplied by."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "linear":
        return plain / rope.parameters["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope.parameters), 1.0
    if rope.kind == "yarn":
        return _yarn(plain, rope, head_dim), yarn_magnitude(rope.parameters)
    return plain, 1.0


def _llama3(plain: Tensor, parameters: dict[str, Any]) -> Tensor:
    """Short waves are kept, waves longer than the original context are stretched, those between are
    blended (Llama 3.1).
    """
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * plain / (2 * math.pi)  # in the original context
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    blended: Tensor = (1 - keep) * plain / parameters["factor"] + keep * plain
    return blended


def _yarn(plain: Tensor, rope: Rope, head_dim: int) -> Tensor:
    """Interpolation by parts: YaRN, Peng et al. 2023 (arXiv 2309.00071), section 3.2."""
    parameters = rope.parameters

    def dimension(turns: float) -> float:
        """The (fractional) dimension whose wave turns that often in the original context."""
        length = parameters["original_max_position_embeddings"]
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = dimension(parameters.get("beta_fast") or 32), dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    span = last - first if last != first else 0.001
    stretch = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / span).clamp(0.0, 1.0)
    blended: Tensor = plain / parameters["factor"] * stretch + plain * (1 - stretch)
    return blended
