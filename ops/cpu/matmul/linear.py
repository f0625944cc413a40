"""Linears on packed weights, quantized or not: linear, linear_float32, gate_up_silu and
linear_tree.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.checks import check_gate_up, check_leaves
from ops.cpu.arena import Arena
from ops.cpu.checks import sizes
from ops.cpu.library import dtype_number, library
from ops.interface import Quantization, check_shape

_CODES = {None: 0, "int8": 1, "int4": 2}  # Codes of src/quantized.h
_COMPACT = 4  # as there
_QUAD = 4  # as there
_arena = Arena()
_SAME_DTYPE, _SUM_FLOAT32, _SILU_MUL = range(3)


class _PackedWeight(ctypes.Structure):
    """PackedWeight of src/linear.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("out_features", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("leaves", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("gated", ctypes.c_int32),
        ("codes", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in the kernels' layout; the one it was made from may be freed."""

    dtype: torch.dtype
    out_features: int
    in_features: int
    num_leaves: int
    padding: int  # zeros after each leaf: bfloat16 is multiplied in pairs, and codes are stored in fours
    data: Tensor  # owns the memory
    address: int  # of `description`
    description: _PackedWeight


def prepare_linear(weight: Tensor, quantization: Quantization | None = None) -> PackedWeight:
    """weight [out, in] dtype."""
    return _pack(weight, 1, quantization, gated=False)


def prepare_embedding(weight: Tensor, quantization: Quantization | None = None) -> PackedWeight:
    """weight [rows, D] dtype."""
    return _pack(weight, 1, quantization, gated=False)


def prepare_gate_up(weight: Tensor, quantization: Quantization | None = None) -> PackedWeight:
    """weight [2 * I, D] dtype, gate's rows first."""
    check_gate_up(weight)
    return _pack(weight, 1, quantization, gated=True)


def prepare_tree_linear(weight: Tensor, num_leaves: int, quantization: Quantization | None = None) -> PackedWeight:
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
    return _multiply(x, weight, bias, _SAME_DTYPE, weight.dtype)


def linear_float32(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [T, in] dtype -> [T, out] float32."""
    return _multiply(x, weight, None, _SUM_FLOAT32, torch.float32)


def gate_up_silu(x: Tensor, weight: PackedWeight) -> Tensor:
    """silu(x @ gate.T) * (x @ up.T); x [T, D] dtype -> [T, I] dtype."""
    return _multiply(x, weight, None, _SILU_MUL, weight.dtype)


def linear_tree(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [T, in] dtype -> [T, out] float32: the leaves' products, added pairwise as a balanced
    binary tree.
    """
    return _multiply(x, weight, None, _SUM_FLOAT32, torch.float32)


def embedding(ids: Tensor, weight: PackedWeight) -> Tensor:
    """Rows ids [T] int32 of a weight [rows, D] that prepare_embedding was given -> [T, D]
    float32.
    """
    check_shape("ids", ids, (None,), torch.int32)
    if weight.description.gated or weight.num_leaves > 1:
        raise ValueError("embedding takes a weight of prepare_embedding")
    result = torch.empty((ids.shape[0], weight.description.in_features))
    wrong = library().squadron_unpack_rows(
        weight.address, ids.data_ptr(), ids.shape[0], result.data_ptr(), torch.get_num_threads()
    )
    if wrong >= 0:
        raise ValueError(f"ids[{wrong}] is {ids[wrong]}; the weight has {weight.out_features} rows")
    return result[:, : weight.in_features].contiguous() if weight.padding else result


def _multiply(x: Tensor, weight: PackedWeight, bias: Tensor | None, output: int, dtype: torch.dtype) -> Tensor:
    if (output == _SILU_MUL) != bool(weight.description.gated):
        raise ValueError("a weight of prepare_gate_up is for gate_up_silu, and no other is")
    num_rows, _ = sizes("x", x, 2)
    check_shape("x", x, (num_rows, weight.in_features), weight.dtype)
    if weight.padding:
        x = _pad_leaves(x, weight.num_leaves, weight.padding)
    result = torch.empty((num_rows, weight.out_features), dtype=dtype)
    library().squadron_linear(
        weight.address,
        x.data_ptr(),
        num_rows,
        None if bias is None else bias.data_ptr(),
        result.data_ptr(),
        output,
        torch.get_num_threads(),
    )
    return result


def _pack(weight: Tensor, num_leaves: int, quantization: Quantization | None, *, gated: bool) -> PackedWeight:
    rows, in_features = sizes("weight", weight, 2)
    step = _QUAD if quantization else 4 // weight.element_size()
    padding = -(in_features // num_leaves) % step
    source = _pad_leaves(weight, num_leaves, padding) if padding else weight
    description = _PackedWeight(
        out_features=rows // 2 if gated else rows,
        in_features=source.shape[1],
        leaves=num_leaves,
        dtype=dtype_number(weight),
        gated=gated,
        codes=_CODES[quantization],
    )
    if quantization is None and weight.dtype == torch.bfloat16:
        description.codes = _COMPACT
    data = _pack_as(description, source)
    if data is None:
        description.codes = _CODES[None]
        data = _pack_as(description, source)
    assert data is not None
    address = ctypes.addressof(description)
    return PackedWeight(
        weight.dtype, description.out_features, in_features, num_leaves, padding, data, address, description
    )


def _pack_as(description: _PackedWeight, source: Tensor) -> Tensor | None:
    """The data packed as described; None if that is impossible, for example if it has too many
    exponents to be compact.
    """
    address = ctypes.addressof(description)
    data = _arena.take(library().squadron_packed_bytes(address))
    description.data = data.data_ptr()
    if library().squadron_pack(address, source.data_ptr(), torch.get_num_threads()) == 0:
        return data
    _arena.give_back(data)
    return None


def _pad_leaves(x: Tensor, num_leaves: int, padding: int) -> Tensor:
    """x [rows, in] with `padding` zeros after each leaf."""
    leaves = x.view(x.shape[0], num_leaves, -1)
    return torch.nn.functional.pad(leaves, (0, padding)).view(x.shape[0], -1)
