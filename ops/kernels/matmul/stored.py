"""A weight in any of the forms in which it is stored, and what `products` is given of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ops.interface import Quantization, Weight
from ops.kernels.device import HOPPER, capability
from ops.kernels.matmul.codes import decode_kernel
from ops.kernels.matmul.published import CodedWeight, ordered, round_rows, stack_published, store_published
from ops.kernels.matmul.quantization import (
    QuantizedWeight,
    encode_rows,
    rows_of_quantized,
    stack_quantized,
    store_quantized,
)
from ops.published import PublishedWeight
from ops.reference.matmul.quantization import GROUP

CODES = ("codes4", "codes8", "offset8", "float8")
DECODED_ROWS = 512  # up to which each tile of rows decodes its weights
DECODED_OUTS = 64  # rows of a weight that a program decodes a piece of

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
    if len({type(weight) for weight in weights}) > 1:
        raise ValueError("only some experts of a layer are quantized, which the triton backend does not compute")
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
    kind = "codes4" if weight.kind == "int4" else "codes8"
    return Operands(x, None, weight.codes, weight.scales, None, kind, leaf, GROUP)


def decoded(given: Operands, weight: Stored, num_leaves: int) -> Operands:
    """The same, or for many rows with the weight of 16 bits that the codes stand for: a pass over a
    weight then costs less than to decode it for each tile of rows. A product's bits are the same.
    """
    num_rows, width = given.x.shape
    is_many = num_rows > DECODED_ROWS and given.kind in CODES and weight.dtype != torch.float32
    if not is_many or capability(given.x.device)[0] != HOPPER:
        return given
    num_out = weight.shape[0]
    plain = torch.empty((num_out, width), dtype=weight.dtype, device=given.x.device)
    decode_kernel[(given.codes.shape[0], triton.cdiv(num_out, DECODED_OUTS))](
        given.codes, given.scales, given.zeros, plain, num_out,
        WIDTH=width, LEAF=given.leaf, KIND=given.kind, PIECE=given.piece, OUTS=DECODED_OUTS, num_warps=4,
    )  # fmt: skip
    return Operands(given.x, None, plain, None, None, "plain", given.leaf)


def rows_of(weight: Stored, ids: Tensor) -> Tensor:
    """What rows ids [T] of a weight in one leaf stand for, [T, in]: float32, or the weight's dtype
    if it is not quantized.
    """
    if isinstance(weight, CodedWeight):
        raise ValueError("embedding takes a weight of prepare_embedding")
    if isinstance(weight, QuantizedWeight):
        return rows_of_quantized(weight, ids)
    return torch.nn.functional.embedding(ids, weight)
