"""Linear layers: weights are kept as float32, so that products of any model dtype are summed in float32.

Quantized weights are kept as the numbers that their codes stand for.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.interface import Quantization, check_shape
from ops.reference.quantization import quantize
from ops.tree import add_tree


def prepare_linear(weight: Tensor, quantization: Quantization | None = None) -> Tensor:
    """weight [out, in] dtype -> the same, float32 and contiguous (no copy if it is so already)."""
    check_shape("weight", weight, (None, None))
    return quantize(weight, quantization)


def prepare_embedding(weight: Tensor, quantization: Quantization | None = None) -> Tensor:
    """weight [rows, D] dtype -> as prepare_linear."""
    return prepare_linear(weight, quantization)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    check_shape("x", x, (None, weight.shape[1]))
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],), x.dtype)
    return F.linear(x.float(), weight, None if bias is None else bias.float()).to(x.dtype)


def linear_float32(x: Tensor, weight: Tensor) -> Tensor:
    check_shape("x", x, (None, weight.shape[1]))
    return F.linear(x.float(), weight)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    check_shape("ids", ids, (None,), torch.int32)
    return F.embedding(ids, weight)


def prepare_tree_linear(weight: Tensor, num_leaves: int, quantization: Quantization | None = None) -> Tensor:
    """weight [out, in] -> [num_leaves, out, in / num_leaves] float32: a leaf's product is the same on whichever rank."""
    check_shape("weight", weight, (None, None))
    num_out, num_in = weight.shape
    if num_leaves < 1 or num_leaves & (num_leaves - 1) or num_in % num_leaves:
        raise ValueError(f"{num_in} inputs cannot be cut into {num_leaves} leaves, a power of two that divides them")
    return quantize(weight, quantization, num_leaves).view(num_out, num_leaves, -1).transpose(0, 1).contiguous()


def linear_tree(x: Tensor, weight: Tensor) -> Tensor:
    num_leaves, _, leaf = weight.shape
    check_shape("x", x, (None, num_leaves * leaf))
    columns = x.to(torch.float32).split(leaf, dim=1)
    return add_tree([F.linear(part.contiguous(), weight[i]) for i, part in enumerate(columns)])
