"""A row's bits do not depend on the rows and runs beside it, on threads or on shards."""

import pytest
import torch

from ops import cpu
from ops.cpu.tape import NotOnTape, Tapes
from ops.interface import Adapted, AdapterPart, Quantization
from ops.tree import add_tree
from tests.ops.cpu.test_exact import same_bits

NUM_ROWS, HIDDEN, OUT = 67, 256, 96
SLOTS = torch.randint(-1, 3, (NUM_ROWS,), generator=torch.Generator().manual_seed(5))


def part(rank: int, dtype: torch.dtype, seed: int, outputs: int = OUT) -> AdapterPart:
    generator = torch.Generator().manual_seed(seed)
    down, up = torch.randn(rank, HIDDEN, generator=generator), torch.randn(outputs, rank, generator=generator)
    return AdapterPart(down.to(dtype), up.to(dtype), slice(0, outputs), 0.1)


def runs(slots: list[int]) -> torch.Tensor:
    return torch.tensor([(row, row + 1, slot) for row, slot in enumerate(slots) if slot >= 0], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_rows_are_alone(dtype: torch.dtype, quantization: Quantization | None) -> None:
    x, weight = torch.randn(NUM_ROWS, HIDDEN).to(dtype), torch.randn(OUT, HIDDEN).to(dtype)
    prepared = cpu.prepare_tree_linear(weight, 4, quantization)
    slots = [cpu.make_adapter([part(rank, dtype, rank)], prepared) for rank in (1, 8, 33)]
    together = cpu.adapted_linear_tree(x, prepared, Adapted(runs(SLOTS.tolist()), slots))
    for row, slot in enumerate(SLOTS.tolist()):
        mine = x[row : row + 1]
        alone = cpu.linear_tree(mine, prepared)
        if slot >= 0:
            one = torch.tensor([(0, 1, 0)], dtype=torch.int32)
            alone = cpu.adapted_linear_tree(mine, prepared, Adapted(one, [slots[slot]]))
        assert same_bits(together[row : row + 1], alone), (row, slot)
    order = SLOTS.argsort(stable=True)
    ends = torch.bincount(SLOTS + 1, minlength=4).cumsum(0).tolist()
    merged = torch.tensor([(ends[slot], ends[slot + 1], slot) for slot in range(3)], dtype=torch.int32)
    sorted_rows = cpu.adapted_linear_tree(x[order].contiguous(), prepared, Adapted(merged, slots))
    assert same_bits(sorted_rows, together[order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shards_are_those_of_the_whole(dtype: torch.dtype) -> None:
    x, weight = torch.randn(NUM_ROWS, HIDDEN).to(dtype), torch.randn(OUT, HIDDEN).to(dtype)
    whole, factors = cpu.prepare_tree_linear(weight, 4), part(8, dtype, 0)
    step = runs([0] * NUM_ROWS)
    expected = cpu.adapted_linear_tree(x, whole, Adapted(step, [cpu.make_adapter([factors], whole)]))
    halves = []
    for inputs in (slice(0, HIDDEN // 2), slice(HIDDEN // 2, HIDDEN)):
        prepared = cpu.prepare_tree_linear(weight[:, inputs].contiguous(), 2)
        half = AdapterPart(factors.down[:, inputs].contiguous(), factors.up, factors.outputs, factors.scale)
        adapted = Adapted(step, [cpu.make_adapter([half], prepared)])
        halves.append(cpu.adapted_linear_tree(x[:, inputs].contiguous(), prepared, adapted))
    assert same_bits(add_tree(halves), expected)
    columns = cpu.prepare_linear(weight)
    expected = cpu.adapted_linear(x, columns, None, Adapted(step, [cpu.make_adapter([factors], columns)]))
    for outputs in (slice(0, 40), slice(40, OUT)):
        prepared = cpu.prepare_linear(weight[outputs].contiguous())
        own = AdapterPart(factors.down, factors.up[outputs].contiguous(), slice(0, len(weight[outputs])), factors.scale)
        got = cpu.adapted_linear(x, prepared, None, Adapted(step, [cpu.make_adapter([own], prepared)]))
        assert same_bits(got, expected[:, outputs])


def test_a_tape_reads_adapters_and_rows_anew() -> None:
    """Others in their places, other rows, another number of runs, none at all."""
    dtype, longest = torch.bfloat16, torch.iinfo(torch.int32).max
    x, prepared = torch.randn(8, HIDDEN).to(dtype), cpu.prepare_tree_linear(torch.randn(OUT, HIDDEN).to(dtype), 4)
    a, b, c = (cpu.make_adapter([part(rank, dtype, rank)], prepared) for rank in (3, 16, 5))
    kept, slots = torch.zeros((8, 3), dtype=torch.int32), cpu.make_adapter_slots(2, 16, 1)
    replay = Tapes().capture(lambda: cpu.adapted_linear_tree(x, prepared, Adapted(kept, slots)))
    for adapters, rows in (
        ([a, b], [(1, 3, 0), (3, 4, 1), (6, 8, 0)]),
        ([c, b], [(0, 8, 0)]),
        ([c, b], [(row, row + 1, row % 2) for row in range(8)]),
        ([None, a], [(0, 1, 0), (2, 5, 1)]),
        ([None, None], [(0, 8, 0)]),
        ([b, None], []),
    ):
        for slot, adapter in enumerate(adapters):
            slots[slot] = adapter
        kept[:] = torch.tensor(rows + [(longest, longest, 0)] * (8 - len(rows)))
        expected = cpu.linear_tree(x, prepared)
        for first, end, slot in rows:
            if adapters[slot] is not None:
                one = Adapted(torch.tensor([(0, end - first, 0)], dtype=torch.int32), [adapters[slot]])
                expected[first:end] = cpu.adapted_linear_tree(x[first:end].contiguous(), prepared, one)
        assert same_bits(replay(), expected), (adapters, rows)


def test_a_tape_holds_only_slots_that_stay() -> None:
    x, prepared = torch.randn(2, HIDDEN), cpu.prepare_linear(torch.randn(OUT, HIDDEN))
    adapter, rows = cpu.make_adapter([part(5, torch.float32, 0)], prepared), runs([0, 0])
    with pytest.raises(NotOnTape, match="torch computes aten::lift_fresh"):
        Tapes().capture(lambda: cpu.adapted_linear(x, prepared, None, Adapted(rows, [adapter])))
    slots = cpu.make_adapter_slots(1, 4, 1)
    with pytest.raises(ValueError, match="the adapter has 5 inner columns, and 4 is the most"):
        slots[0] = adapter
    assert slots[0] is None
