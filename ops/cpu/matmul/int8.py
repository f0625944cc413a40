"""Products of 8-bit integers: a published weight's codes as the kernels have them, and inputs that
are rounded to as many bits.
"""

import ctypes

import torch
from torch import Tensor

from ops.cpu.library import dtype_number, library
from ops.cpu.matmul.packed import Description, PackedWeight, arena
from ops.published import PublishedWeight

PRODUCT8 = 9  # Codes of src/quantized.h
_FOURFOLD = 4  # as in src/int8_linear.cpp


def pack_int8(weight: PublishedWeight, num_leaves: int, *, gated: bool) -> PackedWeight:
    """Of kind w8a8."""
    rows, num_in = weight.shape
    length = num_in // num_leaves
    padding = -length % _FOURFOLD
    codes = (weight.codes ^ 128).view(torch.int8)
    padded = torch.nn.functional.pad(codes.view(rows, num_leaves, length), (0, padding)).contiguous()
    scales = weight.scales[:, 0].contiguous()
    offsets = torch.empty(num_leaves + 1, dtype=torch.int64)
    description = Description(
        out_features=rows // 2 if gated else rows,
        in_features=num_leaves * (length + padding),
        leaves=num_leaves,
        dtype=dtype_number(torch.empty(0, dtype=weight.dtype)),
        gated=gated,
        codes=PRODUCT8,
    )
    address = ctypes.addressof(description)
    library().squadron_int8_offsets(address, offsets.data_ptr())
    description.leaf_offsets = offsets.data_ptr()
    data = arena.take(library().squadron_packed_bytes(address))
    description.data = data.data_ptr()
    library().squadron_pack_int8(address, padded.data_ptr(), scales.data_ptr(), torch.get_num_threads())
    return PackedWeight(
        weight.dtype,
        description.out_features,
        num_in,
        num_leaves,
        padding,
        data,
        address,
        description,
        tables=(offsets,),
        input_scale=weight.input_scale,
    )


def int8_linear(x: Tensor, weight: PackedWeight, bias: Tensor | None, output: int, result: Tensor) -> Tensor:
    """x [T, description.in_features] dtype; fills and returns `result`."""
    num_rows, leaves = x.shape[0], weight.num_leaves
    codes = torch.empty(x.shape, dtype=torch.uint8)
    scales = torch.empty((num_rows, leaves))
    library().squadron_encode_rows(
        x.data_ptr(),
        num_rows,
        x.shape[1],
        leaves,
        weight.input_scale or 0.0,
        codes.data_ptr(),
        scales.data_ptr(),
        weight.description.dtype,
        torch.get_num_threads(),
    )
    library().squadron_int8_linear(
        weight.address,
        codes.data_ptr(),
        scales.data_ptr(),
        num_rows,
        None if bias is None else bias.data_ptr(),
        result.data_ptr(),
        output,
        torch.get_num_threads(),
    )
    return result
