"""silu(gate) * up, on a product that was not fused with it."""

import torch
from torch import Tensor

from ops.cpu.checks import sizes
from ops.cpu.library import dtype_number, library


def silu_and_mul(x: Tensor) -> Tensor:
    """x [T, 2 * I] dtype -> silu(x[:, :I]) * x[:, I:], [T, I] dtype."""
    rows, width = sizes("x", x, 2)
    if width % 2:
        raise ValueError(f"x has {width} columns; gate and up have as many each")
    result = torch.empty((rows, width // 2), dtype=x.dtype)
    library().squadron_silu_and_mul(
        x.data_ptr(), result.data_ptr(), rows, width // 2, dtype_number(x), torch.get_num_threads()
    )
    return result
