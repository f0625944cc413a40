"""Low-rank adapters of linears, different ones in one launch: each row finds its own in a table.

What an adapter adds to a row is computed by the same operations whatever rows and adapters are
beside it: a tile goes through the adapters of its rows, and keeps of each what its own rows get.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import adapter_sizes
from ops.interface import Adapted, AdapterPart, check_shape
from ops.kernels.activation import silu_rows
from ops.kernels.matmul.linear import TreeWeight, add_leaves, multiply
from ops.kernels.matmul.stored import Stored

RANKS, ROWS = 16, 16  # of a tile: ranks are filled up to a multiple


@triton.jit
def down_kernel(
    x,  # [num_rows, NUM_LEAVES * LEAF]
    row_slots,  # [num_rows] int32, -1: none
    table,  # [NUM_SLOTS, 4] int64: addresses of down, up and scales, and the rank
    inner,  # [NUM_LEAVES, num_rows, WIDTH]
    num_rows,
    NUM_SLOTS: tl.constexpr,
    NUM_LEAVES: tl.constexpr,
    LEAF: tl.constexpr,
    WIDTH: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Grid (tiles of rows, tiles of WIDTH, NUM_LEAVES): scale * down @ x of each leaf."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ranks = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    leaf = tl.program_id(2)
    inputs = tl.arange(0, INPUTS)[None, :]
    slots = tl.load(row_slots + rows, mask=rows < num_rows, other=-1)
    x_rows = x + tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * (NUM_LEAVES * LEAF) + leaf * LEAF
    for slot in range(NUM_SLOTS):
        is_mine = slots == slot
        rank = tl.load(table + slot * 4 + 3)
        if (tl.max(is_mine.to(tl.int32), 0) > 0) & (tl.program_id(1) * RANKS < rank):
            down = tl.load(table + slot * 4).to(tl.pointer_type(x.dtype.element_ty))
            scales = tl.load(table + slot * 4 + 2).to(tl.pointer_type(tl.float32))
            down_rows = down + ranks.to(tl.int64)[:, None] * (NUM_LEAVES * LEAF) + leaf * LEAF
            acc = tl.zeros([RANKS, ROWS], tl.float32)
            for start in range(0, LEAF, INPUTS):
                exists = start + inputs < LEAF
                part = tl.load(x_rows + start + inputs, mask=exists, other=0.0)
                weights = tl.load(down_rows + start + inputs, mask=exists, other=0.0)
                acc = tl.dot(weights, tl.trans(part), acc, input_precision="ieee")
            scaled = acc * tl.load(scales + ranks)[:, None]
            cells = (leaf.to(tl.int64) * num_rows + rows)[None, :] * WIDTH + ranks[:, None]
            is_there = tl.broadcast_to(is_mine[None, :], [RANKS, ROWS])
            tl.store(inner + cells, scaled.to(inner.dtype.element_ty), mask=is_there)


@triton.jit
def up_kernel(
    sums,  # [NUM_LEAVES, num_rows, NUM_OUT] float32: what the adapters add to
    inner,  # [NUM_LEAVES, num_rows, WIDTH]
    row_slots,
    table,
    num_rows,
    NUM_SLOTS: tl.constexpr,
    NUM_OUT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTS: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Grid (tiles of rows, tiles of outputs, leaves): sums += up @ inner."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    leaf = tl.program_id(2).to(tl.int64)
    ranks = tl.arange(0, RANKS)
    slots = tl.load(row_slots + rows, mask=rows < num_rows, other=-1)
    if tl.max(slots, 0) >= 0:
        leaf_rows = leaf * num_rows + tl.minimum(rows, num_rows - 1)
        is_there = (outs < NUM_OUT)[:, None] & (slots >= 0)[None, :]
        cells = sums + leaf_rows[None, :] * NUM_OUT + outs[:, None]
        acc = tl.load(cells, mask=is_there, other=0.0)
        for slot in range(NUM_SLOTS):
            is_mine = slots == slot
            if tl.max(is_mine.to(tl.int32), 0) > 0:
                up = tl.load(table + slot * 4 + 1).to(tl.pointer_type(inner.dtype.element_ty))
                rank = tl.load(table + slot * 4 + 3)
                up_rows = up + tl.minimum(outs, NUM_OUT - 1).to(tl.int64)[:, None] * rank
                added = acc
                for start in range(0, rank, RANKS):
                    of_rows = inner + leaf_rows[:, None] * WIDTH + start + ranks[None, :]
                    part = tl.load(of_rows, mask=is_mine[:, None], other=0.0)
                    weights = tl.load(up_rows + start + ranks[None, :])
                    added = tl.dot(weights, tl.trans(part), added, input_precision="ieee")
                acc = tl.where(is_mine[None, :], added, acc)
        tl.store(cells, acc, mask=is_there)


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """Its parts as one, of the whole weight."""

    down: Tensor  # [rank, in] dtype, the parts' one after the other, filled up with zeros
    up: Tensor  # [out, rank] dtype, zero where a part does not change an output
    scales: Tensor  # [rank] float32

    @property
    def num_bytes(self) -> int:
        return self.down.nbytes + self.up.nbytes + self.scales.nbytes

    def to(self, device: torch.device) -> "StoredAdapter":
        """A copy. The host's is in memory from which a GPU copies by itself."""
        tensors = self.down, self.up, self.scales
        if device.type == "cpu" and torch.cuda.is_available():
            return StoredAdapter(
                *(torch.empty_like(each, device="cpu", pin_memory=True).copy_(each) for each in tensors)
            )
        return StoredAdapter(*(each.to(device, non_blocking=True, copy=True) for each in tensors))

    def line(self) -> list[int]:
        """Of the kernels' table."""
        return [self.down.data_ptr(), self.up.data_ptr(), self.scales.data_ptr(), len(self.scales)]


def make_adapter(parts: Sequence[AdapterPart], weight: Stored | TreeWeight) -> StoredAdapter:
    """Of the linears that are merged in a weight."""
    stored = weight.weight if isinstance(weight, TreeWeight) else weight
    num_out, num_in = stored.shape
    adapter_sizes(parts, num_out, num_in, stored.dtype)
    rank = sum(part.down.shape[0] for part in parts)
    first = parts[0].down
    down = first.new_zeros((rank + -rank % RANKS, num_in))
    up, scales = first.new_zeros((num_out, len(down))), torch.zeros(len(down), device=first.device)
    start = 0
    for part in parts:
        end = start + part.down.shape[0]
        down[start:end], up[part.outputs, start:end], scales[start:end] = part.down, part.up, part.scale
        start = end
    return StoredAdapter(down, up, scales)


def adapted_linear(x: Tensor, weight: Stored, bias: Tensor | None, adapted: Adapted) -> Tensor:
    """As linear, with the rows' adapters."""
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],), weight.dtype)
    total = _sums(x, weight, 1, adapted)[0]
    return (total if bias is None else total + bias.float()).to(x.dtype)


def adapted_gate_up_silu(x: Tensor, weight: Stored, adapted: Adapted) -> Tensor:
    """As gate_up_silu, with the rows' adapters."""
    return silu_rows(_sums(x, weight, 1, adapted)[0], x.dtype)


def adapted_linear_tree(x: Tensor, weight: TreeWeight, adapted: Adapted) -> Tensor:
    """As linear_tree, with the rows' adapters: each leaf's product has its part of theirs."""
    return add_leaves(_sums(x, weight.weight, weight.num_leaves, adapted))


def _sums(x: Tensor, weight: Stored, num_leaves: int, adapted: Adapted) -> Tensor:
    """[num_leaves, T, out] float32: the weight's products and what the adapters add."""
    check_shape("runs", adapted.runs, (None, 3), torch.int32)
    sums = multiply(x, weight, torch.float32, num_leaves=num_leaves)
    if not sums.numel():
        return sums
    num_rows, num_out = sums.shape[1:]
    row_slots, table, width = _tables(num_rows, adapted, x.device)
    inner = x.new_empty((num_leaves, num_rows, width))
    tiles, sizes = triton.cdiv(num_rows, ROWS), {"NUM_SLOTS": len(table), "WIDTH": width, "ROWS": ROWS, "RANKS": RANKS}
    down_kernel[(tiles, width // RANKS, num_leaves)](
        x, row_slots, table, inner, num_rows,
        NUM_LEAVES=num_leaves, LEAF=x.shape[1] // num_leaves, INPUTS=64, **sizes,
    )  # fmt: skip
    up_kernel[(tiles, triton.cdiv(num_out, 64), num_leaves)](
        sums, inner, row_slots, table, num_rows, NUM_OUT=num_out, OUTS=64, **sizes
    )
    return sums


def _tables(num_rows: int, adapted: Adapted, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """The kernels' row_slots and table, on the device, and the largest rank."""
    row_slots = torch.full((num_rows,), -1, dtype=torch.int32)
    for first, end, slot in adapted.runs.tolist():
        if adapted.slots[slot] is not None:
            row_slots[first:end] = slot
    lines = [[0] * 4 if each is None else each.line() for each in adapted.slots]
    table = torch.tensor(lines, dtype=torch.int64)
    width = max(line[3] for line in lines)
    return row_slots.to(device, non_blocking=True), table.to(device, non_blocking=True), width
