"""RMS norm, of rows and of heads, and the additions to the residual stream."""

import torch
from torch import Tensor

from ops.checks import qk_norm_sizes
from ops.cpu.checks import sizes
from ops.cpu.library import dtype_number, library
from ops.interface import check_shape


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, D] dtype, weight [D] dtype -> [T, D] dtype."""
    rows, size = sizes("x", x, 2)
    check_shape("weight", weight, (size,), x.dtype)
    result = torch.empty_like(x)
    library().squadron_rms_norm(
        x.data_ptr(), weight.data_ptr(), result.data_ptr(), rows, size, eps, dtype_number(x), torch.get_num_threads()
    )
    return result


def add_rms_norm(update: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, D] dtype += update [T, D] float32, in place and cast once; returns its rms_norm,
    [T, D] dtype.
    """
    rows, size = sizes("residual", residual, 2)
    check_shape("update", update, (rows, size), torch.float32)
    check_shape("weight", weight, (size,), residual.dtype)
    result = torch.empty_like(residual)
    library().squadron_add_rms_norm(
        update.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        result.data_ptr(),
        rows,
        size,
        eps,
        dtype_number(residual),
        torch.get_num_threads(),
    )
    return result


def add(update: Tensor, residual: Tensor) -> None:
    """residual [T, D] dtype += update [T, D] float32, in place and cast once."""
    rows, size = sizes("residual", residual, 2)
    check_shape("update", update, (rows, size), torch.float32)
    library().squadron_add(
        update.data_ptr(), residual.data_ptr(), rows, size, dtype_number(residual), torch.get_num_threads()
    )


def qk_norm(qkv: Tensor, query_weight: Tensor, key_weight: Tensor, num_kv_heads: int, eps: float) -> None:
    """In place on qkv [T, (H + 2 * K) * head_dim] dtype: rms_norm of each query and key head;
    weights [head_dim] dtype.
    """
    rows, num_heads, head_dim = qk_norm_sizes(qkv, query_weight, key_weight, num_kv_heads)
    library().squadron_qk_norm(
        qkv.data_ptr(),
        query_weight.data_ptr(),
        key_weight.data_ptr(),
        rows,
        num_heads,
        num_kv_heads,
        head_dim,
        eps,
        dtype_number(qkv),
        torch.get_num_threads(),
    )
