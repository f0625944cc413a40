"""RMS norm, of rows and of heads, and the additions to the residual stream that come with it."""

import torch
from torch import Tensor

from ops.checks import qk_norm_sizes
from ops.interface import check_shape


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    check_shape("x", x, (None, None))
    check_shape("weight", weight, (x.shape[1],))
    x32 = x.float()
    scale = torch.rsqrt(x32.square().mean(dim=1, keepdim=True) + eps)
    return (x32 * scale * weight.float()).to(x.dtype)


def add_rms_norm(update: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm is that of the residual as cast, so that a pipeline stage may begin or end between
    the two.
    """
    add(update, residual)
    return rms_norm(residual, weight, eps)


def add(update: Tensor, residual: Tensor) -> None:
    check_shape("residual", residual, (None, None))
    check_shape("update", update, tuple(residual.shape), torch.float32)
    residual.copy_(residual.float() + update)


def qk_norm(qkv: Tensor, query_weight: Tensor, key_weight: Tensor, num_kv_heads: int, eps: float) -> None:
    num_rows, num_heads, head_dim = qk_norm_sizes(qkv, query_weight, key_weight, num_kv_heads)
    heads = qkv.view(num_rows, num_heads + 2 * num_kv_heads, head_dim)
    for part, weight in ((heads[:, :num_heads], query_weight), (heads[:, num_heads:-num_kv_heads], key_weight)):
        part.copy_(rms_norm(part.contiguous().view(-1, head_dim), weight, eps).view_as(part))
