"""A weight in any of the forms in which it is stored, and what `products` is given of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ops.interface import Quantization, Weight
from ops.kernels.matmul.published import CodedWeight, ordered, round_rows, stack_published, store_published
from ops.kernels.matmul.quantization import (
    QuantizedWeight,
    encode_rows,
    rows_of_quantized,
    stack_quantized,
    store_quantized,
)
from ops.published import PublishedWeight

Stored = Tensor | QuantizedWeight | CodedWeight


class Operands(NamedTuple):
    """Arguments of `products`."""

    x: Tensor
    x_scales: Tensor | None
    codes: Tensor
    scales: Tensor | None
    zeros: Tensor | None
    kind: str
    leaf: int  # inputs
    piece: int = 1  # inputs that share a scale, of published codes


def store(weight: Weight, quantization: Quantization | None, num_leaves: int | None = None) -> Stored:
    """weight [rows, in] dtype as it is to be kept; `in` is cut into num_leaves equal leaves. None:
    it is never cut.
    """
    if isinstance(weight, PublishedWeight):
        return store_published(weight, num_leaves)
    if quantization is None:
        return weight
    return store_quantized(weight, quantization, num_leaves or 1)


def stack(weights: Sequence[Any]) -> Stored:
    """Weights of one shape and form, one after the other. Raises ValueError; see
    `stack_published`.
    """
    match weights[0]:
        case CodedWeight():
            return stack_published(weights)
        case QuantizedWeight():
            return stack_quantized(weights)
    return torch.stack(list(weights))


def operands(x: Tensor, weight: Stored, num_leaves: int = 1) -> Operands:
    """x [T, in] times the weight."""
    if isinstance(weight, Tensor):
        return Operands(x, None, weight, None, None, "plain", weight.shape[-1] // num_leaves)
    if isinstance(weight, CodedWeight):
        x_scales = None
        if weight.kind == "w8a8":
            x, x_scales = round_rows(x, num_leaves, weight.input_scale)
        rows = ordered(x, weight)
        return Operands(
            rows, x_scales, weight.codes, weight.scales, weight.zeros, weight.kind, weight.leaf, weight.piece
        )
    leaf = weight.shape[-1] // num_leaves
    if weight.kind == "fp8":
        return Operands(*encode_rows(x, num_leaves), weight.codes, weight.scales, None, weight.kind, leaf)
    return Operands(x, None, weight.codes, weight.scales, None, weight.kind, leaf)


def rows_of(weight: Stored, ids: Tensor) -> Tensor:
    """What rows ids [T] of a weight in one leaf stand for, [T, in]: float32, or the weight's dtype
    if it is not quantized.
    """
    if isinstance(weight, CodedWeight):
        raise ValueError("embedding takes a weight of prepare_embedding")
    if isinstance(weight, QuantizedWeight):
        return rows_of_quantized(weight, ids)
    return torch.nn.functional.embedding(ids, weight)
