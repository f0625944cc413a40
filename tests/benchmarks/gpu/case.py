"""A thing to be measured: a call, what it should give, and the bytes and operations that it cannot do without."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """`run` gives what `want` gives, but for rounding; `want` is of fewer rows where all would take too long."""

    name: str
    run: Callable[[], Tensor]
    want: Callable[[], Tensor]
    num_bytes: int
    num_operations: int = 0


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
QUICK = {"quick": Sizes(4, 2, 16, 48, 64, 200, 2, 40, 20, 8, 2, 32)}


def has_float8(device: torch.device) -> bool:
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9)
