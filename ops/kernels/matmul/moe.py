"""Experts: products in which each expert has its own rows, and sums in a fixed order.

Rows are sorted by expert on the device, and grids have the size of the worst case: nothing waits
for the host, and a CUDA graph stays valid when rows go to other experts. Products are those of
`linear`, one launch for all experts; an element's bits do not depend on how many rows go to its
expert.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import check_expert_leaves
from ops.interface import Quantization, Weight, check_shape
from ops.kernels.device import HOPPER, capability
from ops.kernels.matmul.products import products
from ops.kernels.matmul.stored import CODES, Stored, operands, stack, store

SORTED_FEW, SORTED_MANY = 64, 1024  # places that a program looks at together: few sizes, each is compiled


@triton.jit(do_not_specialize=["first", "num_places"])
def sort_kernel(
    ids,  # [num_places] int32
    places,  # [num_places] int32: those of each expert here, in order
    starts,  # [COUNT + 1] int32, into places
    first,
    num_places,
    BLOCK: tl.constexpr,
):
    """Grid (COUNT + 1,): counts the places of the experts before its own, then writes its own's;
    the last only counts.
    """
    expert = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    num_before = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_places, BLOCK):
        exists = start + columns < num_places
        local = tl.load(ids + start + columns, mask=exists, other=0) - first
        num_before += (exists & (local >= 0) & (local < expert)).to(tl.int32)
    next_place = tl.sum(num_before, 0)
    tl.store(starts + expert, next_place)
    if expert < tl.num_programs(0) - 1:
        for start in range(0, num_places, BLOCK):
            exists = start + columns < num_places
            is_mine = exists & (tl.load(ids + start + columns, mask=exists, other=0) - first == expert)
            counted = tl.cumsum(is_mine.to(tl.int32), 0)
            tl.store(places + next_place + counted - 1, start + columns, mask=is_mine)
            next_place += tl.max(counted, 0)


@triton.jit
def experts_kernel(
    x,  # GATED: [T, NUM_IN], the model's rows; else [places, NUM_IN], sorted by expert
    x_scales,
    weight,  # of COUNT experts, each of NUM_OUT rows, or twice as many if GATED
    scales,
    zeros,
    weight_size,  # elements of an expert's weight
    scales_size,
    places,  # row * CHOSEN + slot, sorted by expert
    starts,  # [COUNT + 1] int32, into places
    shares,  # by place, float32: what an expert's output is multiplied by; unused if GATED
    output,  # GATED: [places, NUM_OUT], sorted by expert; else by place, float32
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,  # COUNT, rounded up to a power of two
    CHOSEN: tl.constexpr,
    KIND: tl.constexpr,
    PIECE: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (tiles of outputs * most tiles of rows there can be,): OUTS outputs of ROWS rows that go
    to one expert.
    """
    OUT_TILES: tl.constexpr = (NUM_OUT + OUTS - 1) // OUTS
    row_tile = tl.program_id(0) // OUT_TILES
    experts = tl.arange(0, EXPERTS)
    begins = tl.load(starts + experts, mask=experts < COUNT, other=0)
    ends = tl.load(starts + experts + 1, mask=experts < COUNT, other=0)
    tile_ends = tl.cumsum(tl.cdiv(ends - begins, ROWS), 0)
    if row_tile < tl.max(tile_ends, 0):
        is_before = tile_ends <= row_tile
        expert = tl.sum(is_before.to(tl.int32), 0)
        end = tl.load(starts + expert + 1)
        first = tl.load(starts + expert) + (row_tile - tl.max(tl.where(is_before, tile_ends, 0), 0)) * ROWS
        positions = first + tl.arange(0, ROWS)
        # Outputs and rows that do not exist repeat the last one, and are not stored.
        existing = tl.minimum(positions, end - 1)
        place = tl.load(places + existing).to(tl.int64)
        rows = place // CHOSEN if GATED else existing.to(tl.int64)
        outs = tl.program_id(0) % OUT_TILES * OUTS + tl.arange(0, OUTS)
        if KIND != "plain":
            scales += expert.to(tl.int64) * scales_size
        if zeros is not None:
            zeros += expert.to(tl.int64) * scales_size
        acc, up_acc = products(
            x, x_scales, weight + expert.to(tl.int64) * weight_size, scales, zeros, 0,
            tl.minimum(outs, NUM_OUT - 1), rows, NUM_OUT, 1, NUM_IN, KIND, PIECE, GATED, OUTS, ROWS, INPUTS, STAGES,
        )  # fmt: skip
        if GATED:
            acc = acc / (1.0 + tl.exp(-acc)) * up_acc
            targets = positions.to(tl.int64)
        else:
            acc = acc * tl.load(shares + place)[None, :]
            targets = place
        is_there = (outs < NUM_OUT)[:, None] & (positions < end)[None, :]
        tl.store(output + targets[None, :] * NUM_OUT + outs[:, None], acc.to(output.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["first"])
def combine_kernel(
    outputs,  # [T, CHOSEN, SIZE] float32, written where the expert is one of those here
    ids,  # [T, CHOSEN] int32
    total,  # [T, SIZE] float32
    first,
    COUNT: tl.constexpr,
    LEAVES: tl.constexpr,
    CHOSEN: tl.constexpr,
    SLOTS: tl.constexpr,  # CHOSEN, rounded up to a power of two
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (T, tiles of SIZE): a row's sum, in order of id within a leaf, then over leaves,
    neighbours first.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    leaves = tl.arange(0, LEAVES)
    slots = tl.arange(0, SLOTS)
    experts = tl.load(ids + row * CHOSEN + slots, mask=slots < CHOSEN, other=0) - first
    is_left = (slots < CHOSEN) & (experts >= 0) & (experts < COUNT)
    sums = tl.zeros([LEAVES, BLOCK], tl.float32)
    for _ in range(CHOSEN):
        expert = tl.min(tl.where(is_left, experts, COUNT), 0)  # COUNT: none is left
        is_next = is_left & (experts == expert)
        slot = tl.max(tl.where(is_next, slots, 0), 0)
        is_left = is_left & (experts != expert)
        cells = outputs + (row * CHOSEN + slot) * SIZE + columns
        value = tl.load(cells, mask=(expert < COUNT) & (columns < SIZE), other=0.0)
        is_leaf = (expert < COUNT) & (leaves == expert // (COUNT // LEAVES))
        sums = tl.where(is_leaf[:, None], sums + value[None, :], sums)
    for level in tl.static_range(8):
        if (LEAVES >> level) > 1:
            sums = tl.sum(tl.reshape(sums, [LEAVES >> (level + 1), 2, BLOCK]), 1)
    tl.store(total + row * SIZE + columns, tl.reshape(sums, [BLOCK]), mask=columns < SIZE)


@dataclass(frozen=True, slots=True)
class Experts:
    """Neighbouring experts of one size."""

    gate_up: Stored  # of each [2 * I, D]
    down: Stored  # [D, I]
    count: int
    first: int  # the id of the first of them
    num_leaves: int


def prepare_experts(
    experts: Iterable[tuple[Weight, Weight]], first: int, num_leaves: int, quantization: Quantization | None = None
) -> Experts:
    """Each one's gate and up [2 * I, D] dtype and down [D, I]; their number is a multiple of
    num_leaves.
    """
    stored = [tuple(store(weight, quantization) for weight in pair) for pair in experts]
    check_expert_leaves(len(stored), num_leaves)
    gate_up, down = zip(*stored, strict=True)
    return Experts(stack(gate_up), stack(down), len(stored), first, num_leaves)


def experts_tree(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """x [T, D] dtype; ids [T, k] int32, weights [T, k] float32 -> [T, D] float32."""
    hidden, inner = experts.down.shape[-2:]
    check_shape("x", x, (None, hidden), experts.down.dtype)
    check_shape("ids", ids, (x.shape[0], None), torch.int32)
    check_shape("weights", weights, tuple(ids.shape), torch.float32)
    total = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if not total.numel():
        return total
    num_chosen = ids.shape[1]
    places, starts = _sorted(ids, experts)
    activated = x.new_empty((ids.numel(), inner))
    outputs = torch.empty((ids.numel(), hidden), dtype=torch.float32, device=x.device)
    _multiply(x, experts.gate_up, places, starts, weights, activated, num_chosen, is_gated=True)
    _multiply(activated, experts.down, places, starts, weights, outputs, num_chosen, is_gated=False)
    block = max(16, 1024 // experts.num_leaves)
    combine_kernel[(x.shape[0], triton.cdiv(hidden, block))](
        outputs, ids, total, experts.first,
        COUNT=experts.count, LEAVES=experts.num_leaves, CHOSEN=num_chosen, SLOTS=triton.next_power_of_2(num_chosen),
        SIZE=hidden, BLOCK=block,
    )  # fmt: skip
    return total


def _sorted(ids: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """Places in ids, flat, by the expert that is there, int32; [count + 1] int32: where each
    expert's begin.
    """
    places = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
    starts = torch.empty(experts.count + 1, dtype=torch.int32, device=ids.device)
    block = SORTED_FEW if ids.numel() <= SORTED_FEW else SORTED_MANY
    sort_kernel[(experts.count + 1,)](ids, places, starts, experts.first, ids.numel(), BLOCK=block)
    return places, starts


def _multiply(
    x: Tensor,
    weight: Stored,
    places: Tensor,
    starts: Tensor,
    shares: Tensor,
    output: Tensor,
    num_chosen: int,
    *,
    is_gated: bool,
) -> None:
    """The arguments of experts_kernel, on the smallest grid that holds every way in which rows may
    go to experts.
    """
    count, num_places = len(starts) - 1, len(places)
    num_out, num_in = weight.shape[-2:]
    num_out = num_out // 2 if is_gated else num_out
    given = operands(x, weight)
    options = experts_options(weight.dtype, num_places, count)
    if given.kind in CODES and capability(x.device)[0] != HOPPER:
        options["ROWS"] = min(options["ROWS"], 32)  # numbers are in registers, beside the sums
    row_tiles = num_places // options["ROWS"] + min(count, num_places)
    experts_kernel[(triton.cdiv(num_out, options["OUTS"]) * row_tiles,)](
        given.x, given.x_scales, given.codes, given.scales, given.zeros,
        given.codes.stride(0), 0 if given.scales is None else given.scales.stride(0),
        places, starts, shares, output,
        NUM_OUT=num_out, NUM_IN=num_in, COUNT=count, EXPERTS=triton.next_power_of_2(count), CHOSEN=num_chosen,
        KIND=given.kind, PIECE=given.piece, GATED=is_gated, **options,
    )  # fmt: skip


def experts_options(dtype: torch.dtype, num_places: int, count: int) -> dict[str, int]:
    """The tile for so many places over `count` experts. ROWS alone depends on their number: it
    changes no element's bits.
    """
    if dtype == torch.float32:
        return {"OUTS": 64, "ROWS": 16, "INPUTS": 32, "STAGES": 2, "num_warps": 4}
    rows = 16 if num_places <= 16 * count else 64
    return {"OUTS": 64, "ROWS": rows, "INPUTS": 64, "STAGES": 3, "num_warps": 4}
