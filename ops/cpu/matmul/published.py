"""Packs weights that were published quantized: inputs of one scale lie together, leaf by leaf."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.cpu.library import dtype_number, library
from ops.cpu.matmul.packed import Description, PackedWeight, arena
from ops.interface import check_shape
from ops.published import PublishedWeight

_ZERO4, _SYM8, _ZERO8, _FLOAT8 = 5, 6, 7, 8  # Codes of src/quantized.h
_QUAD = 4  # a run's length is a multiple of it
_LONGEST = 128  # inputs of a run: longer ones are cut, so that a chain's last sum is not waited for


@dataclass(frozen=True, slots=True)
class Runs:
    """How the inputs are dealt out: a function of the leaf that they are in, whichever rank has
    it.
    """

    lengths: Tensor  # [runs] int32
    groups: Tensor  # [runs] int32
    leaf_runs: Tensor  # [leaves + 1] int32: the first of each leaf
    order: Tensor  # [leaves * longest leaf] int32: which input is there, -1 if none


def pack_published(weight: PublishedWeight, num_leaves: int, *, gated: bool) -> PackedWeight:
    """Raises ValueError."""
    rows, num_in = weight.shape
    runs = cut_into_runs(weight.groups, num_leaves)
    is_regular = torch.equal(runs.order, torch.arange(num_in, dtype=torch.int32))
    offsets = torch.empty(num_leaves + 1, dtype=torch.int64)
    description = Description(
        out_features=rows // 2 if gated else rows,
        in_features=runs.order.numel(),
        leaves=num_leaves,
        dtype=dtype_number(torch.empty(0, dtype=weight.dtype)),
        gated=gated,
        codes=_codes_of(weight),
        runs=runs.lengths.data_ptr(),
        leaf_runs=runs.leaf_runs.data_ptr(),
    )
    address = ctypes.addressof(description)
    library().squadron_published_offsets(address, offsets.data_ptr())
    description.leaf_offsets = offsets.data_ptr()
    data = arena.take(library().squadron_packed_bytes(address))
    description.data = data.data_ptr()
    codes = weight.codes if is_regular else _gathered(weight.codes, runs.order)
    zeros = None if weight.zeros is None else weight.zeros.contiguous()
    scales = weight.scales.contiguous()
    library().squadron_pack_published(
        address,
        codes.data_ptr(),
        None if zeros is None else zeros.data_ptr(),
        scales.data_ptr(),
        scales.shape[1],
        runs.groups.data_ptr(),
        torch.get_num_threads(),
    )
    return PackedWeight(
        weight.dtype,
        description.out_features,
        num_in,
        num_leaves,
        0,
        data,
        address,
        description,
        order=None if is_regular else runs.order,
        tables=(runs.lengths, runs.leaf_runs, offsets),
        digits_bytes=library().squadron_digits_bytes(address),
    )


def cut_into_runs(groups: Tensor, num_leaves: int) -> Runs:
    """groups [in]: of each input. Within a leaf, inputs are in order of their groups."""
    lengths: list[int] = []
    of_runs: list[int] = []
    leaf_runs = [0]
    orders: list[Tensor] = []
    for leaf in groups.view(num_leaves, -1):
        start = len(orders) * groups.numel() // num_leaves
        by_group = leaf.argsort(stable=True)
        values, counts = leaf.unique(return_counts=True)
        pieces: list[Tensor] = []
        for group, members in zip(values.tolist(), by_group.split(counts.tolist()), strict=True):
            for piece in members.split(_LONGEST):
                padding = -piece.numel() % _QUAD
                pieces.append(torch.nn.functional.pad(piece + start, (0, padding), value=-1))
                lengths.append(piece.numel() + padding)
                of_runs.append(group)
        leaf_runs.append(len(lengths))
        orders.append(torch.cat(pieces))
    longest = max(order.numel() for order in orders)
    padded = [torch.nn.functional.pad(order, (0, longest - order.numel()), value=-1) for order in orders]
    return Runs(_int32(lengths), _int32(of_runs), _int32(leaf_runs), torch.cat(padded).int())


def ordered(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [T, in] dtype -> the same as the weight has its inputs, [T, description.in_features]
    dtype.
    """
    if weight.order is None:
        return x
    check_shape("x", x, (None, weight.in_features), weight.dtype)
    result = torch.empty((x.shape[0], weight.order.numel()), dtype=x.dtype)
    library().squadron_gather(
        x.data_ptr(),
        weight.order.data_ptr(),
        result.data_ptr(),
        x.shape[0],
        weight.in_features,
        weight.order.numel(),
        weight.description.dtype,
        torch.get_num_threads(),
    )
    return result


def _gathered(codes: Tensor, order: Tensor) -> Tensor:
    """The columns of codes [rows, in] in that order; zero where there is none."""
    found = codes[:, order.clamp(min=0).long()]
    return found.masked_fill_(order < 0, 0)


def _codes_of(weight: PublishedWeight) -> int:
    """The kind of Codes that the kernels have for it."""
    if weight.zeros is None:
        return _FLOAT8
    if weight.kind == "int4":
        return _ZERO4
    return _SYM8 if bool((weight.zeros == 128).all()) else _ZERO8


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
