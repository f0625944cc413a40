"""Quantized weights in the layout that `products` reads, and rows of activations as float8.

Integers are packed as published ones are, a group as a piece. float8 lies as the weight does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.interface import Quantization
from ops.kernels.device import check_float8
from ops.kernels.matmul.packing import pack, unpack, words_of
from ops.reference.matmul.float8 import LARGEST, SMALLEST_PEAK, decode, encode
from ops.reference.matmul.quantization import GROUP, encode_groups

BITS = {"int8": 8, "int4": 4}
ROWS_AT_ONCE = 4096  # of a weight, while it is quantized: bounds what that takes besides


@triton.jit
def encode_kernel(
    rows,  # [R, NUM_LEAVES * LEAF]
    codes,  # the same, float8
    scales,  # [R, NUM_LEAVES] float32
    smallest_peak,
    largest,
    NUM_LEAVES: tl.constexpr,
    LEAF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (R, NUM_LEAVES)."""
    row, leaf = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    first = row * (NUM_LEAVES * LEAF) + leaf * LEAF
    peaks = tl.zeros([BLOCK], tl.float32)
    for start in range(0, LEAF, BLOCK):
        part = tl.load(rows + first + start + columns, mask=start + columns < LEAF, other=0.0)
        peaks = tl.maximum(peaks, tl.abs(part.to(tl.float32)))
    scale = tl.div_rn(tl.maximum(tl.max(peaks, 0), smallest_peak), largest)
    inverse = tl.div_rn(1.0, scale)
    for start in range(0, LEAF, BLOCK):
        exists = start + columns < LEAF
        part = tl.load(rows + first + start + columns, mask=exists, other=0.0).to(tl.float32)
        tl.store(codes + first + start + columns, (part * inverse).to(codes.dtype.element_ty), mask=exists)
    tl.store(scales + row * NUM_LEAVES + leaf, scale)


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight, or alike ones stacked along a first dimension."""

    codes: Tensor  # [groups, rows, words] int32, see `packing`; or float8 [rows, in]
    scales: Tensor  # [groups, rows] int32 or float32, see `packing`; of float8 float32 [num_leaves, rows]
    kind: Quantization
    shape: tuple[int, int]  # of one: rows, in
    dtype: torch.dtype  # of the model


def store_quantized(weight: Tensor, quantization: Quantization, num_leaves: int) -> QuantizedWeight:
    """weight [rows, in] dtype; `in` is cut into num_leaves equal leaves."""
    parts = [_pack(part, quantization, num_leaves) for part in weight.split(ROWS_AT_ONCE)]
    all_codes, all_scales = zip(*parts, strict=True)
    codes, scales = torch.cat(all_codes, dim=0 if quantization == "fp8" else 1), torch.cat(all_scales, dim=1)
    if quantization != "fp8" and weight.dtype == torch.bfloat16:  # which holds them
        scales = words_of(scales.bfloat16(), None, BITS[quantization])
    return QuantizedWeight(codes, scales, quantization, (weight.shape[0], weight.shape[1]), weight.dtype)


def stack_quantized(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Weights of one shape, one after the other."""
    codes, scales = (torch.stack([getattr(each, name) for each in weights]) for name in ("codes", "scales"))
    return replace(weights[0], codes=codes, scales=scales)


def encode_rows(rows: Tensor, num_leaves: int) -> tuple[Tensor, Tensor]:
    """ops.reference.matmul.float8.encode in one launch, to the bit where a leaf is finite; where
    not, a product with it is NaN too.
    """
    check_float8(rows.device)
    codes = torch.empty_like(rows, dtype=torch.float8_e4m3fn)
    scales = torch.empty((rows.shape[0], num_leaves), device=rows.device)
    leaf = rows.shape[1] // num_leaves
    if rows.numel():
        encode_kernel[(rows.shape[0], num_leaves)](
            rows, codes, scales, SMALLEST_PEAK, LARGEST,
            NUM_LEAVES=num_leaves, LEAF=leaf, BLOCK=min(2048, triton.next_power_of_2(leaf)),
        )  # fmt: skip
    return codes, scales


def rows_of_quantized(weight: QuantizedWeight, ids: Tensor) -> Tensor:
    """What rows ids [T] of a weight in one leaf stand for, [T, in] float32."""
    if weight.kind == "fp8":
        codes = weight.codes.view(torch.uint8).index_select(0, ids).view(torch.float8_e4m3fn)
        return decode(codes, weight.scales.index_select(1, ids).T.contiguous())
    scales = weight.scales.index_select(1, ids)
    if scales.dtype == torch.int32:
        scales = scales.short().view(weight.dtype).float()
    bits = BITS[weight.kind]
    codes = unpack(weight.codes.index_select(1, ids), bits) - (1 << (bits - 1))
    decoded = codes.view(len(ids), -1, GROUP).float() * scales.T[..., None]
    return decoded.flatten(1)[:, : weight.shape[1]].contiguous()


def _pack(weight: Tensor, quantization: Quantization, num_leaves: int) -> tuple[Tensor, Tensor]:
    """Codes and scales of weight [rows, in] as a QuantizedWeight has them."""
    if quantization == "fp8":
        codes, scales = encode(weight, num_leaves)
        return codes, scales.T
    codes, scales = encode_groups(weight, quantization, num_leaves)
    bits = BITS[quantization]
    unsigned = (codes.flatten(1).short() + (1 << (bits - 1))).to(torch.uint8)
    return pack(unsigned, bits, GROUP), scales.flatten(1).T.contiguous()
