"""The requests of a benchmark: prompts of random token ids, lengths and arrival times, all from one
seed.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np

from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, uniform from `low` to `high`."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Work:
    """One request: a prompt, and the length of its answer in tokens."""

    prompt: list[int]
    output_len: int

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=self.output_len, ignore_eos=True)


def lengths(text: str) -> Lengths:
    """From "128" or "16:256"; raises ArgumentTypeError."""
    low, _, high = text.partition(":")
    try:
        found = Lengths(int(low), int(high or low))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor two, as in 16:256") from None
    if not 1 <= found.low <= found.high:
        raise argparse.ArgumentTypeError(f"{text!r} does not go upwards from 1 or more")
    return found


def generator(seed: int) -> np.random.Generator:
    """Of any seed that an engine takes: NumPy takes none below 0."""
    return np.random.default_rng(seed if seed >= 0 else [-seed, 1])


def random_works(
    random: np.random.Generator, count: int, input_len: Lengths, output_len: Lengths, vocab_size: int
) -> list[Work]:
    """Prompts share prefixes only by chance, so that a prefix cache does not help."""
    input_lens = random.integers(input_len.low, input_len.high, count, endpoint=True)
    output_lens = random.integers(output_len.low, output_len.high, count, endpoint=True)
    return [
        Work(random.integers(vocab_size, size=length).tolist(), int(output))
        for length, output in zip(input_lens, output_lens, strict=True)
    ]


def poisson_arrivals(random: np.random.Generator, count: int, rate: float) -> list[float]:
    """Arrival times in seconds after the first request: `rate` per second on average, or all at
    once if it is inf.
    """
    if math.isinf(rate):
        return [0.0] * count
    gaps = random.exponential(1 / rate, count - 1)
    return [0.0, *np.cumsum(gaps).tolist()]
