"""silu(gate) * up, on a product that was not fused with it."""

import torch
from torch import Tensor

from ops.cpu.library import dtype_number, library
from ops.interface import check_shape


def silu_and_mul(x: Tensor) -> Tensor:
    """x [T, 2 * I] dtype -> silu(x[:, :I]) * x[:, I:], [T, I] dtype."""
    check_shape("x", x, (None, None))
    if x.shape[1] % 2:
        raise ValueError(f"x has {x.shape[1]} columns; gate and up have as many each")
    result = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype)
    library().squadron_silu_and_mul(
        x.data_ptr(), result.data_ptr(), *result.shape, dtype_number(x), torch.get_num_threads()
    )
    return result
