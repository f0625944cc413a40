"""Linear layers: weights are kept as float32, so that products of any model dtype are summed in
float32.

Quantized weights are kept as the numbers that their codes represent. Inputs of a float8 weight are
rounded likewise.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.checks import check_leaves
from ops.interface import Quantization, check_shape
from ops.reference.matmul.float8 import rounded
from ops.reference.matmul.quantization import quantize
from ops.tree import add_tree


@dataclass(frozen=True, slots=True)
class Float8Weight:
    """A weight whose inputs are rounded to float8 as it is itself."""

    weight: Tensor  # float32

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape


Prepared = Tensor | Float8Weight


def stored(weight: Tensor, quantization: Quantization | None, num_leaves: int = 1) -> Prepared:
    """weight [out, in] -> what it stands for, [out, in] float32 and contiguous (no copy if it is so
    already).
    """
    numbers = quantize(weight, quantization, num_leaves)
    return Float8Weight(numbers) if quantization == "fp8" else numbers


def operands(x: Tensor, weight: Prepared) -> tuple[Tensor, Tensor]:
    """x [T, in] dtype and the weight as numbers that are multiplied, float32."""
    check_shape("x", x, (None, weight.shape[1]))
    return (rounded(x, 1), weight.weight) if isinstance(weight, Float8Weight) else (x.float(), weight)


def prepare_linear(weight: Tensor, quantization: Quantization | None = None) -> Prepared:
    """weight [out, in] dtype."""
    check_shape("weight", weight, (None, None))
    return stored(weight, quantization)


def prepare_embedding(weight: Tensor, quantization: Quantization | None = None) -> Prepared:
    """weight [rows, D] dtype -> as prepare_linear."""
    return prepare_linear(weight, quantization)


def linear(x: Tensor, weight: Prepared, bias: Tensor | None) -> Tensor:
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],), x.dtype)
    return F.linear(*operands(x, weight), None if bias is None else bias.float()).to(x.dtype)


def linear_float32(x: Tensor, weight: Prepared) -> Tensor:
    return F.linear(*operands(x, weight))


def embedding(ids: Tensor, weight: Prepared) -> Tensor:
    check_shape("ids", ids, (None,), torch.int32)
    return F.embedding(ids, weight.weight if isinstance(weight, Float8Weight) else weight)


@dataclass(frozen=True, slots=True)
class TreeWeight:
    """A row-parallel weight, leaf by leaf: a leaf's product is the same on whichever rank."""

    leaves: list[Prepared]  # [out, in / num_leaves] each


def prepare_tree_linear(weight: Tensor, num_leaves: int, quantization: Quantization | None = None) -> TreeWeight:
    """weight [out, in] dtype."""
    check_leaves(weight, num_leaves)
    leaves = weight.split(weight.shape[1] // num_leaves, dim=1)
    return TreeWeight([stored(leaf.contiguous(), quantization) for leaf in leaves])


def linear_tree(x: Tensor, weight: TreeWeight) -> Tensor:
    leaf = weight.leaves[0].shape[1]
    check_shape("x", x, (None, len(weight.leaves) * leaf))
    parts = zip(x.split(leaf, dim=1), weight.leaves, strict=True)
    return add_tree([linear_float32(part.contiguous(), each) for part, each in parts])
