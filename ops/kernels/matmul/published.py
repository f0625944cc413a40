"""Weights that were published quantized, in the layout that `products` reads.

Inputs are cut into pieces: PIECE neighbours in one group each. Which pieces a leaf has depends on
no other leaf, so that its sum is the same on any number of ranks. Where groups are not whole pieces
(act-order, odd sizes), inputs are brought together first, and pieces are filled up with zeros.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops import UnavailableBackend
from ops.kernels.device import check_float8
from ops.kernels.matmul.packing import pack, pack_scales
from ops.published import PublishedWeight
from ops.reference.matmul.int8 import LARGEST, SMALLEST_PEAK

LARGEST_PIECE, SMALLEST_PIECE = 128, 32  # what shares a scale
MIDDLE = 128  # of codes of 8 bits
BITS = {"codes4": 4, "codes8": 8, "offset8": 8, "float8": 8}


@triton.jit
def round_kernel(
    rows,  # [R, NUM_LEAVES * LEAF]
    codes,  # the same, int8
    scales,  # [R, NUM_LEAVES] float32
    input_scale,
    smallest_peak,
    largest,
    NUM_LEAVES: tl.constexpr,
    LEAF: tl.constexpr,
    IS_DYNAMIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (R, NUM_LEAVES). IS_DYNAMIC: each leaf of a row has a scale of its own. A leaf that has
    none is lost: its products are NaN.
    """
    row, leaf = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    first = row * (NUM_LEAVES * LEAF) + leaf * LEAF
    peaks = tl.zeros([BLOCK], tl.float32)
    num_nan = tl.zeros([BLOCK], tl.int32)
    for start in range(0, LEAF, BLOCK):
        part = tl.load(rows + first + start + columns, mask=start + columns < LEAF, other=0.0).to(tl.float32)
        num_nan += (part != part).to(tl.int32)
        peaks = tl.maximum(peaks, tl.abs(part))
    peak = tl.max(peaks, 0)
    is_lost = tl.max(num_nan, 0) > 0
    scale = input_scale
    if IS_DYNAMIC:
        scale = tl.div_rn(tl.maximum(peak, smallest_peak), largest)
        is_lost = is_lost | (peak == float("inf"))
    inverse = tl.div_rn(1.0, scale)
    for start in range(0, LEAF, BLOCK):
        exists = start + columns < LEAF
        part = tl.load(rows + first + start + columns, mask=exists, other=0.0).to(tl.float32)
        part = tl.where(is_lost, 0.0, part)
        limited = tl.minimum(tl.maximum(part * inverse, -128.0), 127.0)
        whole = (limited + 12582912.0) - 12582912.0  # 1.5 * 2^23: to the nearest, to the even one of two
        tl.store(codes + first + start + columns, whole.to(tl.int8), mask=exists)
    tl.store(scales + row * NUM_LEAVES + leaf, tl.where(is_lost, float("nan"), scale))


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """A weight, or alike ones stacked along a first dimension. kind: int4 as `codes4`, int8 as
    `codes8` if all zero points are the middle code, else as `offset8`, fp8 as `float8`, and w8a8.
    """

    codes: Tensor  # [pieces, rows, words] int32, see `packing`; w8a8: [rows, in] int8
    scales: Tensor  # [pieces, rows] int32 or float32, see `packing`; w8a8: [rows] float32
    zeros: Tensor | None  # [pieces, rows] int32, or None
    order: Tensor | None  # [in, filled up] int64: which input is in each place; the one behind the last: zero
    kind: str
    piece: int
    leaf: int  # inputs of a leaf, filled up
    shape: tuple[int, int]  # of one: rows, in
    dtype: torch.dtype  # of the model
    input_scale: float | None = None  # of w8a8


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a weight's inputs are dealt out."""

    size: int
    order: Tensor  # [pieces, size] int64: an input, or their number where there is none
    groups: Tensor  # [pieces] int64


def store_published(weight: PublishedWeight, num_leaves: int | None = None) -> CodedWeight:
    """num_leaves: that its inputs are cut into; None: each rank has all of them. Raises ValueError
    if the device cannot convert its codes.
    """
    rows, num_in = weight.shape
    pieces = cut(weight.groups.long(), _shared(weight, num_leaves), num_leaves or 1)
    leaf = num_in // (num_leaves or 1)
    if weight.kind == "w8a8":
        codes = weight.differences().to(torch.int8)
        scales = weight.scales[:, 0].contiguous()
        shape = (rows, num_in)
        return CodedWeight(codes, scales, None, None, "w8a8", 1, leaf, shape, weight.dtype, weight.input_scale)
    if weight.kind == "fp8":
        check_float8(weight.codes.device)
    order = pieces.order.flatten()
    is_regular = torch.equal(order, torch.arange(num_in, device=order.device))
    codes = weight.codes if is_regular else torch.nn.functional.pad(weight.codes, (0, 1)).index_select(1, order)
    kind = {"int4": "codes4", "int8": "codes8", "fp8": "float8"}[weight.kind]
    zeros = None if weight.zeros is None else weight.zeros[:, pieces.groups].T.int()
    if kind == "codes8" and zeros is not None and not bool((zeros == MIDDLE).all()):
        kind = "offset8"
    scales, zeros = pack_scales(weight.scales[:, pieces.groups].T.contiguous(), zeros, BITS[kind], weight.dtype)
    return CodedWeight(
        codes=pack(codes, BITS[kind], pieces.size),
        scales=scales,
        zeros=zeros,
        order=None if is_regular else order,
        kind=kind,
        piece=pieces.size,
        leaf=order.numel() // (num_leaves or 1),
        shape=(rows, num_in),
        dtype=weight.dtype,
    )


def cut(groups: Tensor, together: int, num_leaves: int) -> Pieces:
    """groups [in] int64; so many inputs that lie `together` are in one group. A leaf's pieces are
    those of one group after those of another; leaves with fewer pieces than another have some of
    no input.
    """
    num_in = groups.numel()
    leaf_size = num_in // num_leaves
    size = max(math.gcd(together, leaf_size, LARGEST_PIECE), SMALLEST_PIECE)
    leaves = [_cut_leaf(leaf, size) for leaf in groups.view(num_leaves, -1)]
    most = max(len(of_pieces) for _, of_pieces in leaves)
    orders, all_groups = [], []
    for index, (order, of_pieces) in enumerate(leaves):
        order = torch.where(order < 0, num_in, order + index * leaf_size)
        orders.append(torch.nn.functional.pad(order, (0, 0, 0, most - len(order)), value=num_in))
        all_groups.append(torch.nn.functional.pad(of_pieces, (0, most - len(of_pieces))))
    return Pieces(size, torch.cat(orders), torch.cat(all_groups))


def _shared(weight: PublishedWeight, num_leaves: int | None) -> int:
    """The same on every rank: if inputs are cut, by what is known of all of them."""
    if weight.together is not None:
        return weight.together
    return math.gcd(*weight.groups.unique(return_counts=True)[1].tolist()) if num_leaves is None else 1


def _cut_leaf(groups: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """groups [leaf] -> the inputs of each piece [pieces, size], -1 where there is none, and its
    group [pieces].
    """
    members = groups.argsort(stable=True)
    values, counts = groups.unique(return_counts=True)
    orders, of_pieces = [], []
    for value, inputs in zip(values, members.split(counts.tolist()), strict=True):
        filled = torch.nn.functional.pad(inputs, (0, -inputs.numel() % size), value=-1).view(-1, size)
        orders.append(filled)
        of_pieces.append(value.expand(len(filled)))
    return torch.cat(orders), torch.cat(of_pieces)


def ordered(x: Tensor, weight: CodedWeight) -> Tensor:
    """x [T, in] as the weight has its inputs: [T, leaves * weight.leaf]."""
    return x if weight.order is None else torch.nn.functional.pad(x, (0, 1)).index_select(1, weight.order)


def round_rows(rows: Tensor, num_leaves: int, input_scale: float | None) -> tuple[Tensor, Tensor]:
    """ops.reference.matmul.int8.encode_rows of each leaf in one launch, to the bit: codes [R, in]
    int8, scales [R, num_leaves] float32.
    """
    codes = torch.empty_like(rows, dtype=torch.int8)
    scales = torch.empty((rows.shape[0], num_leaves), device=rows.device)
    leaf = rows.shape[1] // num_leaves
    if rows.numel():
        round_kernel[(rows.shape[0], num_leaves)](
            rows, codes, scales, input_scale or 0.0, SMALLEST_PEAK, LARGEST,
            NUM_LEAVES=num_leaves, LEAF=leaf, IS_DYNAMIC=input_scale is None,
            BLOCK=min(2048, triton.next_power_of_2(leaf)),
        )  # fmt: skip
    return codes, scales


def stack_published(weights: Sequence[CodedWeight]) -> CodedWeight:
    """Weights of one shape, one after the other. Raises UnavailableBackend if their inputs have to
    be brought together: rows of several experts are multiplied in one launch.
    """
    first = weights[0]
    if any(each.order is not None for each in weights):
        reason = f"their inputs are not cut into groups of a multiple of {SMALLEST_PIECE}"
        raise UnavailableBackend(f"the triton backend does not compute these experts: {reason}; device=cpu would work")
    kind = "offset8" if any(each.kind == "offset8" for each in weights) else first.kind
    if len({each.scales.dtype for each in weights}) > 1 or len({each.zeros is None for each in weights}) > 1:
        weights = [_apart(each) for each in weights]
    codes, scales, zeros = (
        None if getattr(weights[0], name) is None else torch.stack([getattr(each, name) for each in weights])
        for name in ("codes", "scales", "zeros")
    )
    assert codes is not None and scales is not None
    return replace(first, kind=kind, codes=codes, scales=scales, zeros=zeros)


def _apart(weight: CodedWeight) -> CodedWeight:
    """The same with float32 scales beside its zero points."""
    scales, zeros = weight.scales, weight.zeros
    if scales.dtype == torch.int32:
        scales, zeros = scales.short().view(weight.dtype).float(), scales >> 16
    elif zeros is None:
        zeros = torch.full_like(scales, 1 << (BITS[weight.kind] - 1), dtype=torch.int32)
    return replace(weight, scales=scales, zeros=zeros)
