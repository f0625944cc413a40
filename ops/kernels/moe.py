"""Mixture of experts: a router, products in which each expert has its own rows, and sums in a fixed order.

Rows are sorted by expert on the device, and grids have the size of the worst case: nothing waits for the host, and a CUDA graph
stays right when rows go to other experts. Products are those of `linear`: the weight's rows are the rows of the tensor cores'
product, so that an element's bits do not depend on how many rows go to its expert.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.interface import Quantization, check_shape
from ops.kernels.linear import refuse_quantization

LOWEST = tl.constexpr(-3.0e38)  # of a router's logits; NaN is taken as that


@triton.jit
def route_kernel(
    logits,  # [T, SIZE] float32
    ids,  # [T, CHOSEN] int32
    probabilities,  # [T, CHOSEN] float32
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHOSEN: tl.constexpr,
    SLOTS: tl.constexpr,  # CHOSEN, rounded up to a power of two
    NORMALIZE: tl.constexpr,
):
    """Grid (T,): the largest logits one after the other, of equal ones the lowest id."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_free = columns < SIZE
    values = tl.load(logits + row * SIZE + columns, mask=is_free, other=float("-inf"))
    clean = tl.where(values > LOWEST, values, LOWEST)
    largest = tl.max(clean, 0)
    total = tl.sum(tl.where(is_free, tl.exp(values - largest), 0.0), 0)
    slots = tl.arange(0, SLOTS)
    chosen = tl.zeros([SLOTS], tl.int32)
    masses = tl.zeros([SLOTS], tl.float32)
    kept = 0.0
    for slot in tl.static_range(CHOSEN):
        best = tl.max(tl.where(is_free, clean, LOWEST), 0)
        found = tl.min(tl.where(is_free & (clean == best), columns, BLOCK), 0)
        is_free = is_free & (columns != found)
        mass = tl.exp(best - largest) / total
        kept += mass
        chosen = tl.where(slots == slot, found, chosen)
        masses = tl.where(slots == slot, mass, masses)
    if NORMALIZE:
        masses = masses / kept
    tl.store(ids + row * CHOSEN + slots, chosen, mask=slots < CHOSEN)
    tl.store(probabilities + row * CHOSEN + slots, masses, mask=slots < CHOSEN)


@triton.jit
def experts_kernel(
    x,  # GATED: [T, NUM_IN], the model's rows; else [places, NUM_IN], sorted by expert
    weight,  # [COUNT, NUM_OUT, NUM_IN], or twice as many rows if GATED
    places,  # row * CHOSEN + slot, sorted by expert
    starts,  # [COUNT + 1] int32, into places
    scales,  # by place, float32; unused if GATED
    output,  # GATED: [places, NUM_OUT], sorted by expert; else by place, float32
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,  # COUNT, rounded up to a power of two
    CHOSEN: tl.constexpr,
    GATED: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (tiles of outputs * most tiles of rows there can be,): OUTS outputs of ROWS rows that go to one expert."""
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
        place = tl.load(places + tl.minimum(positions, end - 1)).to(tl.int64)
        rows = place // CHOSEN if GATED else tl.minimum(positions, end - 1).to(tl.int64)
        outs = tl.program_id(0) % OUT_TILES * OUTS + tl.arange(0, OUTS)
        inputs = tl.arange(0, INPUTS)
        mine = weight + expert.to(tl.int64) * (NUM_OUT * NUM_IN * (2 if GATED else 1))
        weight_cells = tl.minimum(outs, NUM_OUT - 1).to(tl.int64)[:, None] * NUM_IN + inputs[None, :]
        x_cells = rows[:, None] * NUM_IN + inputs[None, :]
        acc = tl.zeros([OUTS, ROWS], tl.float32)
        up_acc = tl.zeros([OUTS, ROWS], tl.float32)
        for start in tl.range(0, NUM_IN, INPUTS, num_stages=STAGES):
            exists = (start + inputs < NUM_IN)[None, :]
            part = tl.load(x + x_cells + start, mask=exists, other=0.0)
            weights = tl.load(mine + weight_cells + start, mask=exists, other=0.0)
            acc = tl.dot(weights, tl.trans(part), acc, input_precision="ieee")
            if GATED:
                weights = tl.load(mine + NUM_OUT * NUM_IN + weight_cells + start, mask=exists, other=0.0)
                up_acc = tl.dot(weights, tl.trans(part), up_acc, input_precision="ieee")
        if GATED:
            acc = acc / (1.0 + tl.exp(-acc)) * up_acc
            targets = positions.to(tl.int64)
        else:
            acc = acc * tl.load(scales + place)[None, :]
            targets = place
        is_there = (outs < NUM_OUT)[:, None] & (positions < end)[None, :]
        tl.store(output + targets[None, :] * NUM_OUT + outs[:, None], acc.to(output.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["first"])
def combine_kernel(
    outputs,  # [T, CHOSEN, SIZE] float32, written where the expert is one of those here
    sorted_ids,  # [T, CHOSEN] int32, ascending
    slots,  # [T, CHOSEN], where each is in outputs
    total,  # [T, SIZE] float32
    first,
    COUNT: tl.constexpr,
    LEAVES: tl.constexpr,
    CHOSEN: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (T, tiles of SIZE): a row's sum, in order of id within a leaf, then over leaves, neighbours first."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    leaves = tl.arange(0, LEAVES)
    sums = tl.zeros([LEAVES, BLOCK], tl.float32)
    for index in range(CHOSEN):
        expert = tl.load(sorted_ids + row * CHOSEN + index) - first
        slot = tl.load(slots + row * CHOSEN + index)
        is_here = (expert >= 0) & (expert < COUNT)
        value = tl.load(outputs + (row * CHOSEN + slot) * SIZE + columns, mask=is_here & (columns < SIZE), other=0.0)
        is_leaf = is_here & (leaves == expert // (COUNT // LEAVES))
        sums = tl.where(is_leaf[:, None], sums + value[None, :], sums)
    for level in tl.static_range(8):
        if (LEAVES >> level) > 1:
            sums = tl.sum(tl.reshape(sums, [LEAVES >> (level + 1), 2, BLOCK]), 1)
    tl.store(total + row * SIZE + columns, tl.reshape(sums, [BLOCK]), mask=columns < SIZE)


@triton.jit
def add_gated_kernel(gate, x, total, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (T, tiles of SIZE)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    cells = row * SIZE + columns
    exists = columns < SIZE
    weight = 1.0 / (1.0 + tl.exp(-tl.load(gate + row)))
    added = tl.load(total + cells, mask=exists, other=0.0) + weight * tl.load(x + cells, mask=exists, other=0.0)
    tl.store(total + cells, added, mask=exists)


@dataclass(frozen=True, slots=True)
class Experts:
    """Neighbouring experts of one size."""

    gate_up: Tensor  # [count, 2 * I, D] dtype
    down: Tensor  # [count, D, I] dtype
    first: int  # the id of the first of them
    num_leaves: int


def prepare_experts(
    experts: Iterable[tuple[Tensor, Tensor]], first: int, num_leaves: int, quantization: Quantization | None = None
) -> Experts:
    """Each one's gate and up [2 * I, D] dtype and down [D, I]; their number is a multiple of num_leaves."""
    refuse_quantization(quantization)
    gate_up, down = zip(*experts, strict=True)
    if num_leaves not in (1, 2, 4, 8, 16, 32, 64, 128) or len(gate_up) % num_leaves:
        raise ValueError(f"{len(gate_up)} experts cannot be cut into {num_leaves} leaves, a power of two up to 128")
    return Experts(torch.stack(gate_up), torch.stack(down), first, num_leaves)


def route(logits: Tensor, num_chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] float32 -> ids [T, num_chosen] int32, the likeliest first, and their probabilities, float32."""
    check_shape("logits", logits, (None, None), torch.float32)
    num_rows, num_experts = logits.shape
    if not 1 <= num_chosen <= num_experts:
        raise ValueError(f"{num_chosen} of {num_experts} experts cannot be chosen")
    ids = torch.empty((num_rows, num_chosen), dtype=torch.int32, device=logits.device)
    probabilities = torch.empty((num_rows, num_chosen), device=logits.device)
    if num_rows:
        block, slots = triton.next_power_of_2(num_experts), triton.next_power_of_2(num_chosen)
        route_kernel[(num_rows,)](
            logits, ids, probabilities,
            SIZE=num_experts, BLOCK=block, CHOSEN=num_chosen, SLOTS=slots, NORMALIZE=normalize, num_warps=1,
        )  # fmt: skip
    return ids, probabilities


def experts_tree(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """x [T, D] dtype; ids [T, k] int32, weights [T, k] float32 -> [T, D] float32."""
    count, hidden, inner = experts.down.shape
    check_shape("x", x, (None, hidden), experts.down.dtype)
    check_shape("ids", ids, (x.shape[0], None), torch.int32)
    check_shape("weights", weights, tuple(ids.shape), torch.float32)
    total = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if not total.numel():
        return total
    num_chosen = ids.shape[1]
    places, starts = _visits(ids, experts.first, count)
    activated = x.new_empty((ids.numel(), inner))
    outputs = torch.empty((ids.numel(), hidden), dtype=torch.float32, device=x.device)
    _multiply(x, experts.gate_up, places, starts, weights, activated, num_chosen, is_gated=True)
    _multiply(activated, experts.down, places, starts, weights, outputs, num_chosen, is_gated=False)
    sorted_ids, slots = ids.sort(dim=1)
    block = max(16, 1024 // experts.num_leaves)
    combine_kernel[(x.shape[0], triton.cdiv(hidden, block))](
        outputs, sorted_ids, slots, total, experts.first,
        COUNT=count, LEAVES=experts.num_leaves, CHOSEN=num_chosen, SIZE=hidden, BLOCK=block,
    )  # fmt: skip
    return total


def add_gated(gate: Tensor, x: Tensor, total: Tensor) -> None:
    """total [T, D] float32 += sigmoid(gate) * x, in place; gate [T, 1] float32, x [T, D] float32."""
    check_shape("gate", gate, (x.shape[0], 1), torch.float32)
    check_shape("x", x, (None, None), torch.float32)
    check_shape("total", total, tuple(x.shape), torch.float32)
    if x.numel():
        add_gated_kernel[(x.shape[0], triton.cdiv(x.shape[1], 1024))](gate, x, total, SIZE=x.shape[1], BLOCK=1024)


def _visits(ids: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Places in ids, flat, by the expert that is there; [count + 1] int32: where each expert's begin."""
    local = ids.flatten() - first
    local = torch.where((local >= 0) & (local < count), local, count)
    by_expert, places = local.sort(stable=True)
    bounds = torch.arange(count + 1, dtype=torch.int32, device=ids.device)
    return places, torch.searchsorted(by_expert, bounds, out_int32=True)


def _multiply(
    x: Tensor,
    weight: Tensor,
    places: Tensor,
    starts: Tensor,
    scales: Tensor,
    output: Tensor,
    num_chosen: int,
    *,
    is_gated: bool,
) -> None:
    """The arguments of experts_kernel, on the smallest grid that holds every way in which rows may go to experts."""
    count, num_out, num_in = weight.shape
    num_out = num_out // 2 if is_gated else num_out
    options = experts_options(x.dtype, len(places), count)
    row_tiles = len(places) // options["ROWS"] + min(count, len(places))
    experts_kernel[(triton.cdiv(num_out, options["OUTS"]) * row_tiles,)](
        x, weight, places, starts, scales, output,
        NUM_OUT=num_out, NUM_IN=num_in, COUNT=count, EXPERTS=triton.next_power_of_2(count), CHOSEN=num_chosen,
        GATED=is_gated, **options,
    )  # fmt: skip


def experts_options(dtype: torch.dtype, num_places: int, count: int) -> dict[str, int]:
    """The tile for so many places over `count` experts. ROWS alone depends on their number: it changes no element's bits."""
    if dtype == torch.float32:
        return {"OUTS": 64, "ROWS": 16, "INPUTS": 32, "STAGES": 2, "num_warps": 4}
    rows = 16 if num_places <= 16 * count else 64
    return {"OUTS": 64, "ROWS": rows, "INPUTS": 64, "STAGES": 3, "num_warps": 4}
