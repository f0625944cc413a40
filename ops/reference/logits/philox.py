"""Philox-4x32-10, a counter-based generator: a random number is a function of its key and counter,
and of no state.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). Words are held in
int64 tensors, whose products wrap modulo 2**64 with the very bits that unsigned ones would have.
"""

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def uniform(seed: Tensor, choice: Tensor, position: Tensor) -> Tensor:
    """One number in [0, 1) a row, [R] float64: the first word of key `seed`, counter (position,
    choice, 0, 0), / 2**32.
    """
    zero = torch.zeros_like(seed)
    words = philox((position.long(), choice.long(), zero, zero), (seed & WORD, (seed >> 32) & WORD))
    return words[0].double() * 2.0**-32


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds on 32-bit words held in int64; returns the four words of each counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & WORD) ^ c1 ^ k0,
            product1 & WORD,
            ((product0 >> 32) & WORD) ^ c3 ^ k1,
            product0 & WORD,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3
