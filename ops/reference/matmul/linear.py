"""Linear layers: weights are kept as float32, so that products of any model dtype are summed in
float32.

Quantized weights are kept as the numbers that their codes represent. Inputs of a weight that was
quantized to float8 here are rounded likewise. Of a published weight only w8a8 has rounded inputs.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.checks import check_leaves, check_weight
from ops.interface import Quantization, Weight, check_shape
from ops.published import PublishedWeight
from ops.reference.matmul.float8 import rounded
from ops.reference.matmul.int8 import Int8Weight, int8_linear
from ops.reference.matmul.quantization import quantize
from ops.tree import add_tree


@dataclass(frozen=True, slots=True)
class Float8Weight:
    """A weight whose inputs are rounded to float8 as it is itself."""

    weight: Tensor  # float32

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape


Prepared = Tensor | Float8Weight | Int8Weight


def stored(weight: Weight, quantization: Quantization | None, num_leaves: int = 1) -> Prepared:
    """weight [out, in] -> what it stands for, [out, in] float32 and contiguous (no copy if it is so
    already).
    """
    if isinstance(weight, PublishedWeight):
        return Int8Weight.of(weight) if weight.kind == "w8a8" else weight.numbers()
    numbers = quantize(weight, quantization, num_leaves)
    return Float8Weight(numbers) if quantization == "fp8" else numbers


def multiply(x: Tensor, weight: Prepared, bias: Tensor | None = None) -> Tensor:
    """x [T, in] dtype times the weight -> [T, out] float32, with bias [out] dtype."""
    check_shape("x", x, (None, weight.shape[1]))
    added = None if bias is None else bias.float()
    if isinstance(weight, Int8Weight):
        product = int8_linear(x, weight)
        return product if added is None else product + added
    if isinstance(weight, Float8Weight):
        return F.linear(rounded(x, 1), weight.weight, added)
    return F.linear(x.float(), weight, added)


def prepare_linear(weight: Weight, quantization: Quantization | None = None) -> Prepared:
    """weight [out, in] dtype."""
    check_weight(weight)
    return stored(weight, quantization)


def prepare_embedding(weight: Tensor, quantization: Quantization | None = None) -> Prepared:
    """weight [rows, D] dtype -> as prepare_linear."""
    return prepare_linear(weight, quantization)


def linear(x: Tensor, weight: Prepared, bias: Tensor | None) -> Tensor:
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],), x.dtype)
    return multiply(x, weight, bias).to(x.dtype)


def linear_float32(x: Tensor, weight: Prepared) -> Tensor:
    return multiply(x, weight)


def embedding(ids: Tensor, weight: Prepared, dtype: torch.dtype = torch.float32) -> Tensor:
    check_shape("ids", ids, (None,), torch.int32)
    if isinstance(weight, Int8Weight):
        raise ValueError("embedding takes a weight of prepare_embedding")
    return F.embedding(ids, weight.weight if isinstance(weight, Float8Weight) else weight).to(dtype)


@dataclass(frozen=True, slots=True)
class TreeWeight:
    """A row-parallel weight, leaf by leaf: a leaf's product is the same on whichever rank."""

    leaves: list[Prepared]  # [out, in / num_leaves] each


def prepare_tree_linear(weight: Weight, num_leaves: int, quantization: Quantization | None = None) -> TreeWeight:
    """weight [out, in] dtype."""
    check_leaves(weight, num_leaves)
    length = weight.shape[1] // num_leaves
    parts = [slice(start, start + length) for start in range(0, weight.shape[1], length)]
    if isinstance(weight, PublishedWeight):
        return TreeWeight([stored(weight.columns(part), None) for part in parts])
    return TreeWeight([stored(weight[:, part].contiguous(), quantization) for part in parts])


def linear_tree(x: Tensor, weight: TreeWeight) -> Tensor:
    leaf = weight.leaves[0].shape[1]
    check_shape("x", x, (None, len(weight.leaves) * leaf))
    parts = zip(x.split(leaf, dim=1), weight.leaves, strict=True)
    return add_tree([linear_float32(part.contiguous(), each) for part, each in parts])


def linear_leaves(x: Tensor, weight: TreeWeight) -> Tensor:
    return linear_tree(x, weight)
