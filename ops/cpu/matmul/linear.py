"""Linears on packed weights, quantized or not: linear, linear_float32, gate_up_silu and
linear_tree.
"""

import ctypes

import torch
from torch import Tensor

from ops.checks import check_gate_up, check_leaves, check_weight
from ops.cpu.checks import sizes
from ops.cpu.library import dtype_number, library
from ops.cpu.matmul.int8 import PRODUCT8, int8_linear, pack_int8
from ops.cpu.matmul.packed import Description, PackedWeight, arena
from ops.cpu.matmul.published import ordered, pack_published
from ops.interface import Quantization, Weight, check_shape
from ops.published import PublishedWeight

_CODES = {None: 0, "int8": 1, "int4": 2}  # Codes of src/quantized.h
_COMPACT = 4  # as there
_QUAD = 4  # as there
_GROUP = 64  # as there: inputs that share a scale
SAME_DTYPE, SUM_FLOAT32, SILU_MUL = range(3)
# Slots, runs and their number, inner and its width, as squadron_adapter_down was given them.
AdaptedRows = tuple[int | None, int | None, int, int | None, int]
NONE: AdaptedRows = (None, None, 0, None, 0)


def prepare_linear(weight: Weight, quantization: Quantization | None = None) -> PackedWeight:
    """weight [out, in] dtype."""
    check_weight(weight)
    return _pack(weight, 1, quantization, gated=False)


def prepare_embedding(weight: Tensor, quantization: Quantization | None = None) -> PackedWeight:
    """weight [rows, D] dtype."""
    return _pack(weight, 1, quantization, gated=False)


def prepare_gate_up(weight: Weight, quantization: Quantization | None = None) -> PackedWeight:
    """weight [2 * I, D] dtype, gate's rows first."""
    check_gate_up(weight)
    return _pack(weight, 1, quantization, gated=True)


def prepare_tree_linear(weight: Weight, num_leaves: int, quantization: Quantization | None = None) -> PackedWeight:
    """weight [out, in] dtype; `in` is cut into num_leaves (a power of two up to 128) equal
    leaves.
    """
    check_leaves(weight, num_leaves)
    return _pack(weight, num_leaves, quantization, gated=False)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """x [T, in] dtype -> [T, out] dtype; bias [out] dtype is added in float32 before the one
    cast.
    """
    if bias is not None:
        check_shape("bias", bias, (weight.out_features,), weight.dtype)
    return multiply(x, weight, bias, SAME_DTYPE, weight.dtype)


def linear_float32(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [T, in] dtype -> [T, out] float32."""
    return multiply(x, weight, None, SUM_FLOAT32, torch.float32)


def gate_up_silu(x: Tensor, weight: PackedWeight) -> Tensor:
    """silu(x @ gate.T) * (x @ up.T); x [T, D] dtype -> [T, I] dtype."""
    return multiply(x, weight, None, SILU_MUL, weight.dtype)


def linear_tree(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [T, in] dtype -> [T, out] float32: the leaves' products, added pairwise as a balanced
    binary tree.
    """
    return multiply(x, weight, None, SUM_FLOAT32, torch.float32)


def linear_leaves(x: Tensor, weight: PackedWeight) -> Tensor:
    """As linear_tree, which adds leaves as it goes."""
    return linear_tree(x, weight)


def embedding(ids: Tensor, weight: PackedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows ids [T] int32 of a weight [rows, D] that prepare_embedding was given -> [T, D] dtype."""
    check_shape("ids", ids, (None,), torch.int32)
    if weight.description.gated or weight.num_leaves > 1:
        raise ValueError("embedding takes a weight of prepare_embedding")
    result = torch.empty((ids.shape[0], weight.description.in_features))
    wrong = library().squadron_unpack_rows(
        weight.address, ids.data_ptr(), ids.shape[0], result.data_ptr(), torch.get_num_threads()
    )
    if wrong >= 0:
        raise ValueError(f"ids[{wrong}] is {ids[wrong]}; the weight has {weight.out_features} rows")
    return (result[:, : weight.in_features].contiguous() if weight.padding else result).to(dtype)


def multiply(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, output: int, dtype: torch.dtype, adapted: AdaptedRows = NONE
) -> Tensor:
    """x [T, in] dtype -> [T, out], of the kernel's kind of output."""
    if (output == SILU_MUL) != bool(weight.description.gated):
        raise ValueError("a weight of prepare_gate_up is for gate_up_silu, and no other is")
    num_rows, _ = sizes("x", x, 2)
    check_shape("x", x, (num_rows, weight.in_features), weight.dtype)
    if weight.padding:
        x = pad_leaves(x, weight.num_leaves, weight.padding)
    x = ordered(x, weight)
    result = torch.empty((num_rows, weight.out_features), dtype=dtype)
    if weight.description.codes == PRODUCT8:
        return int8_linear(x, weight, bias, output, result)
    digits = encode_digits(x, weight)
    library().squadron_linear(
        weight.address,
        x.data_ptr(),
        num_rows,
        None if bias is None else bias.data_ptr(),
        result.data_ptr(),
        output,
        torch.get_num_threads(),
        *adapted,
        None if digits is None else digits.data_ptr(),
    )
    return result


def encode_digits(x: Tensor, weight: PackedWeight) -> Tensor | None:
    """x [T, description.in_features] bfloat16 -> its digits, [T, digits_bytes]; None if the weight
    is multiplied with x as it is.
    """
    if not weight.digits_bytes:
        return None
    digits = torch.empty((x.shape[0], weight.digits_bytes), dtype=torch.uint8)
    library().squadron_encode_digits(
        weight.address, x.data_ptr(), x.shape[0], digits.data_ptr(), torch.get_num_threads()
    )
    return digits


def _pack(weight: Weight, num_leaves: int, quantization: Quantization | None, *, gated: bool) -> PackedWeight:
    if isinstance(weight, PublishedWeight):
        if weight.kind == "w8a8":
            return pack_int8(weight, num_leaves, gated=gated)
        return pack_published(weight, num_leaves, gated=gated)
    rows, in_features = sizes("weight", weight, 2)
    step = _QUAD if quantization else 4 // weight.element_size()
    padding = -(in_features // num_leaves) % step
    source = pad_leaves(weight, num_leaves, padding) if padding else weight
    description = Description(
        out_features=rows // 2 if gated else rows,
        in_features=source.shape[1],
        leaves=num_leaves,
        dtype=dtype_number(weight),
        gated=gated,
        codes=_CODES[quantization],
    )
    if quantization is None and weight.dtype == torch.bfloat16:
        description.codes = _COMPACT
    tables = _groups(description) if quantization else ()
    data = _pack_as(description, source)
    if data is None:
        description.codes = _CODES[None]
        data = _pack_as(description, source)
    assert data is not None
    address = ctypes.addressof(description)
    return PackedWeight(
        weight.dtype,
        description.out_features,
        in_features,
        num_leaves,
        padding,
        data,
        address,
        description,
        tables=tables,
        digits_bytes=library().squadron_digits_bytes(address),
    )


def _groups(description: Description) -> tuple[Tensor, Tensor]:
    """Makes a quantized weight's groups the runs of its description; they own what it points to."""
    length = description.in_features // description.leaves
    lengths = [_GROUP] * (length // _GROUP) + [length % _GROUP] * (length % _GROUP > 0)
    runs = torch.tensor(lengths * description.leaves, dtype=torch.int32)
    leaf_runs = torch.arange(description.leaves + 1, dtype=torch.int32) * len(lengths)
    description.runs, description.leaf_runs = runs.data_ptr(), leaf_runs.data_ptr()
    return runs, leaf_runs


def _pack_as(description: Description, source: Tensor) -> Tensor | None:
    """The data packed as described; None if that is impossible, for example if it has too many
    exponents to be compact.
    """
    address = ctypes.addressof(description)
    data = arena.take(library().squadron_packed_bytes(address))
    description.data = data.data_ptr()
    if library().squadron_pack(address, source.data_ptr(), torch.get_num_threads()) == 0:
        return data
    arena.give_back(data)
    return None


def pad_leaves(x: Tensor, num_leaves: int, padding: int) -> Tensor:
    """x [rows, in] with `padding` zeros after each leaf."""
    leaves = x.view(x.shape[0], num_leaves, -1)
    return torch.nn.functional.pad(leaves, (0, padding)).view(x.shape[0], -1)
