"""A mixture's router, and the gate of the expert that every row goes to."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import gated_sizes, route_sizes

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
def add_gated_kernel(gate, x, total, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (T, tiles of SIZE)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    cells = row * SIZE + columns
    exists = columns < SIZE
    weight = 1.0 / (1.0 + tl.exp(-tl.load(gate + row)))
    added = tl.load(total + cells, mask=exists, other=0.0) + weight * tl.load(x + cells, mask=exists, other=0.0)
    tl.store(total + cells, added, mask=exists)


def route(logits: Tensor, num_chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] float32 -> ids [T, num_chosen] int32, the likeliest first, and their
    probabilities, float32.
    """
    num_rows, num_experts = route_sizes(logits, num_chosen)
    ids = torch.empty((num_rows, num_chosen), dtype=torch.int32, device=logits.device)
    probabilities = torch.empty((num_rows, num_chosen), device=logits.device)
    if num_rows:
        block, slots = triton.next_power_of_2(num_experts), triton.next_power_of_2(num_chosen)
        route_kernel[(num_rows,)](
            logits, ids, probabilities,
            SIZE=num_experts, BLOCK=block, CHOSEN=num_chosen, SLOTS=slots, NORMALIZE=normalize, num_warps=1,
        )  # fmt: skip
    return ids, probabilities


def add_gated(gate: Tensor, x: Tensor, total: Tensor) -> None:
    """total [T, D] float32 += sigmoid(gate) * x, in place; gate [T, 1] float32, x [T, D]
    float32.
    """
    num_rows, size = gated_sizes(gate, x, total)
    if x.numel():
        add_gated_kernel[(num_rows, triton.cdiv(size, 1024))](gate, x, total, SIZE=size, BLOCK=1024)
