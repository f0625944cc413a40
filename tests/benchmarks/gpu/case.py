"""A thing to be measured: a call, what it should give, and the bytes and operations that it cannot
do without.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """`run` gives what `want` gives, but for rounding; `want` is of fewer rows where all would take
    too long.
    """

    name: str
    run: Callable[[], Tensor]
    want: Callable[[], Tensor]
    num_bytes: int
    num_operations: int = 0


Make = Callable[[], list[Case]]  # the same case in different memory; what goes wrong with a case goes wrong in here


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model and a batch: all small for a rehearsal without a GPU."""

    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    width: int
    vocab: int
    sequences: int
    context: int
    prompt: int
    experts: int
    chosen: int
    expert_width: int


SIZES = {
    "0.5b": Sizes(14, 2, 64, 896, 4864, 151936, 256, 1024, 2048, 64, 8, 768),
    "7b": Sizes(28, 4, 128, 3584, 18944, 152064, 64, 4096, 4096, 64, 8, 1536),
}
BEYOND_CACHE = 256 << 20  # bytes: four times what the largest GPU's cache holds
QUICK = {"quick": Sizes(4, 2, 16, 48, 64, 200, 2, 40, 20, 8, 2, 32)}


def has_float8(device: torch.device) -> bool:
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9)


def copies_beyond_cache(weight: tuple[int, int], rows: int, device: torch.device) -> int:
    """How many bf16 weights of that shape no cache holds, where few rows leave the time to reading
    them.
    """
    if device.type == "cpu":
        return 2
    return -(-BEYOND_CACHE // (2 * weight[0] * weight[1])) if rows <= 256 else 1


def rows_beyond_cache(width: int, least: int, device: torch.device) -> int:
    """How many bf16 rows no cache holds."""
    return least if device.type == "cpu" else max(least, BEYOND_CACHE // (2 * width))
