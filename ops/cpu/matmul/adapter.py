"""Linears whose rows have low-rank adapters, different ones in one batch: `src/adapter.h`."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.checks import adapter_sizes
from ops.cpu.checks import sizes
from ops.cpu.library import dtype_number, library
from ops.cpu.matmul.int8 import PRODUCT8
from ops.cpu.matmul.linear import SAME_DTYPE, SILU_MUL, SUM_FLOAT32, multiply, pad_leaves
from ops.cpu.matmul.packed import PackedWeight
from ops.interface import Adapted, AdapterPart, check_shape

_LONGEST_STEP = 2  # STEP of src/tile.h: a part's inner columns are whole steps


class _Columns(ctypes.Structure):
    """AdapterColumns of src/adapter.h."""

    _fields_ = (("offset", ctypes.c_int64), ("first", ctypes.c_int64), ("steps", ctypes.c_int64))


class _Adapter(ctypes.Structure):
    """Adapter of src/adapter.h."""

    _fields_ = (
        ("down", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("leaves", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
        ("up", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("num_columns", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """An adapter in the kernels' layout; what it was made from may be freed."""

    width: int  # inner columns
    num_bytes: int
    tensors: tuple[Tensor, ...]  # own the memory
    address: int  # of `description`
    description: _Adapter


class AdapterSlots:
    """The adapters of one weight. Kernels read their addresses anew each time, also on a tape."""

    def __init__(self, num_slots: int, width: int) -> None:
        """Empty ones. width: inner columns of any adapter at most."""
        self.width = width
        self._adapters: list[PackedAdapter | None] = [None] * num_slots
        self._addresses = (ctypes.c_void_p * num_slots)()

    @property
    def address(self) -> int:
        return ctypes.addressof(self._addresses)

    def __len__(self) -> int:
        return len(self._adapters)

    def __iter__(self) -> Iterator[PackedAdapter | None]:
        return iter(self._adapters)

    def __getitem__(self, slot: int) -> PackedAdapter | None:
        return self._adapters[slot]

    def __setitem__(self, slot: int, adapter: PackedAdapter | None) -> None:
        if adapter is not None and adapter.width > self.width:
            raise ValueError(f"the adapter has {adapter.width} inner columns, and {self.width} is the most")
        self._addresses[slot] = _address(adapter)
        self._adapters[slot] = adapter


def make_adapter_slots(num_slots: int, max_rank: int, num_parts: int) -> AdapterSlots:
    """Empty ones."""
    return AdapterSlots(num_slots, num_parts * (max_rank + max_rank % _LONGEST_STEP))


def make_adapter(parts: Sequence[AdapterPart], weight: PackedWeight) -> PackedAdapter:
    """An adapter of the linears that are merged in a weight."""
    if weight.description.codes == PRODUCT8:
        raise ValueError("there are no adapters of weights that are multiplied in int8")
    num_outputs = weight.out_features * (2 if weight.description.gated else 1)
    adapter_sizes(parts, num_outputs, weight.in_features, weight.dtype)
    step = 4 // weight.dtype.itemsize
    widths = [part.down.shape[0] + -part.down.shape[0] % step for part in parts]
    firsts = [sum(widths[:index]) for index in range(len(widths))]
    down = torch.zeros((sum(widths), weight.in_features), dtype=weight.dtype)
    scales = torch.ones(sum(widths))
    for part, first in zip(parts, firsts, strict=True):
        down[first : first + part.down.shape[0]] = part.down
        scales[first : first + part.down.shape[0]] = part.scale
    padded = _padded(down, weight)
    packed = _pack_down(padded, weight.num_leaves)
    up, columns = _pack_up(parts, firsts, widths, weight)
    description = _Adapter(
        packed.data_ptr(),
        len(down),
        padded.shape[1],
        weight.num_leaves,
        scales.data_ptr(),
        up.data_ptr(),
        columns.data_ptr(),
        len(columns),
    )
    tensors = (packed, scales, up, columns)
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    return PackedAdapter(sum(widths), num_bytes, tensors, ctypes.addressof(description), description)


def adapted_linear(x: Tensor, weight: PackedWeight, bias: Tensor | None, adapted: Adapted) -> Tensor:
    """As linear, with the rows' adapters."""
    if bias is not None:
        check_shape("bias", bias, (weight.out_features,), weight.dtype)
    return _multiply(x, weight, bias, adapted, SAME_DTYPE, weight.dtype)


def adapted_gate_up_silu(x: Tensor, weight: PackedWeight, adapted: Adapted) -> Tensor:
    """As gate_up_silu, with the rows' adapters."""
    return _multiply(x, weight, None, adapted, SILU_MUL, weight.dtype)


def adapted_linear_tree(x: Tensor, weight: PackedWeight, adapted: Adapted) -> Tensor:
    """As linear_tree, with the rows' adapters: each leaf's product has its part of theirs."""
    return _multiply(x, weight, None, adapted, SUM_FLOAT32, torch.float32)


def _multiply(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, adapted: Adapted, output: int, dtype: torch.dtype
) -> Tensor:
    num_rows, _ = sizes("x", x, 2)
    check_shape("x", x, (num_rows, weight.in_features), weight.dtype)
    check_shape("runs", adapted.runs, (None, 3), torch.int32)
    slots = adapted.slots
    if isinstance(slots, AdapterSlots):
        address, width = slots.address, slots.width
    else:
        # By torch, since nobody keeps it: it cannot be on a tape.
        table = torch.tensor([_address(adapter) or 0 for adapter in slots], dtype=torch.int64)
        address = table.data_ptr()
        width = max((adapter.width for adapter in slots if adapter is not None), default=0)
    inner = torch.empty((num_rows, weight.num_leaves, width), dtype=weight.dtype)
    rows = (address, adapted.runs.data_ptr(), len(adapted.runs), inner.data_ptr(), width)
    read = _padded(x, weight)
    library().squadron_adapter_down(*rows, read.data_ptr(), dtype_number(x), torch.get_num_threads())
    return multiply(x, weight, bias, output, dtype, rows)


def _address(adapter: PackedAdapter | None) -> int | None:
    return None if adapter is None else adapter.address


def _padded(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [rows, in], its leaves whole steps; whatever order the weight has its inputs in."""
    padding = -(weight.in_features // weight.num_leaves) % (4 // weight.dtype.itemsize)
    return pad_leaves(x, weight.num_leaves, padding) if padding else x


def _pack_down(weight: Tensor, num_leaves: int) -> Tensor:
    """A [r, in] as the kernels read it: [halves, leaves, steps, lanes, step]."""
    lanes, step = library().squadron_lanes(), 4 // weight.dtype.itemsize
    whole = torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % lanes))
    return (
        whole.view(-1, lanes, num_leaves, weight.shape[1] // num_leaves // step, step)
        .permute(0, 2, 3, 1, 4)
        .contiguous()
    )


def _pack_up(
    parts: Sequence[AdapterPart], firsts: Sequence[int], widths: Sequence[int], weight: PackedWeight
) -> tuple[Tensor, Tensor]:
    """B as the kernels read it, and where each half panel's is: [halves, 3] int64.

    A half panel reads the inner columns of the parts that its outputs are of; nearly always that is
    one part.
    """
    step = 4 // weight.dtype.itemsize
    halves = _halves(weight)
    num_outputs = weight.out_features * (2 if weight.description.gated else 1)
    whole = torch.zeros((num_outputs + 1, sum(widths)), dtype=weight.dtype)  # the last row is of missing outputs
    starts = torch.full((num_outputs + 1,), sum(widths))
    ends = torch.zeros_like(starts)
    for part, first, width in zip(parts, firsts, widths, strict=True):
        whole[part.outputs, first : first + part.up.shape[1]] = part.up
        starts[part.outputs], ends[part.outputs] = first, first + width
    reads = torch.stack((starts[halves].amin(1), ends[halves].amax(1)), 1)
    columns = torch.zeros((len(halves), 3), dtype=torch.int64)
    pieces, offset = [torch.empty(0, dtype=weight.dtype)], 0
    for first, end in reads.unique(dim=0).tolist():
        if first >= end:
            continue
        alike = (reads == torch.tensor([first, end])).all(1).nonzero().flatten()
        size = halves.shape[1] * (end - first)
        columns[alike, 0] = offset + size * torch.arange(len(alike))
        columns[alike, 1], columns[alike, 2] = first, (end - first) // step
        rows = whole[halves[alike], first:end].view(len(alike), halves.shape[1], -1, step)
        pieces.append(rows.transpose(1, 2).reshape(-1))
        offset += pieces[-1].numel()
    return torch.cat(pieces), columns


def _halves(weight: PackedWeight) -> Tensor:
    """[halves, lanes]: the outputs of each half panel; gate's and up's by turns if it is gated."""
    lanes: int = library().squadron_lanes()
    missing = weight.out_features * (2 if weight.description.gated else 1)
    outputs = torch.arange(weight.out_features + -weight.out_features % lanes)
    of_gate = torch.where(outputs < weight.out_features, outputs, missing).view(-1, lanes)
    if not weight.description.gated:
        return of_gate
    of_up = torch.where(of_gate < missing, of_gate + weight.out_features, missing)
    return torch.stack((of_gate, of_up), 1).view(-1, lanes)
