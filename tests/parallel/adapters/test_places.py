"""Places keep what tapes read where it is."""

import torch

from ops import reference
from ops.interface import Ops
from parallel.adapters.adapter import ShardAdapter, StepAdapters
from parallel.adapters.places import AdapterPlaces

LONGEST = torch.iinfo(torch.int32).max


class Linear:
    ops: Ops = reference  # type: ignore[assignment]
    num_parts = 1


def adapter_of(*linears: Linear) -> ShardAdapter:
    adapter = ShardAdapter()
    for linear in linears:
        adapter.add(linear, torch.zeros(1))
    return adapter


def runs(*values: tuple[int, int, int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).view(-1, 3)


def test_an_adapter_keeps_its_place_until_it_is_removed() -> None:
    first, second = Linear(), Linear()
    a, b, c = adapter_of(first, second), adapter_of(second), adapter_of(first)
    places = AdapterPlaces(2, 8, 4)
    places.put(a)
    of_first, of_second = places.of(first), places.of(second)
    places.put(b)
    assert list(of_first.slots) == [a.linears[id(first)], None]
    assert list(of_second.slots) == [a.linears[id(second)], b.linears[id(second)]]
    places.remove(a)
    assert list(of_first.slots) == [None, None] and of_second.slots[1] is b.linears[id(second)]
    places.put(c)
    assert list(of_first.slots) == [c.linears[id(first)], None] and of_second.slots[0] is None
    assert places.of(first).slots is of_first.slots


def test_rows_are_those_of_the_next_step() -> None:
    a, b, linear = adapter_of(), adapter_of(), Linear()
    places = AdapterPlaces(3, 8, 4)
    read = places.of(linear).runs
    none = (LONGEST, LONGEST, 0)
    assert torch.equal(read, runs(none, none, none, none))
    places.put(a)
    places.put(b)
    places.assign(StepAdapters(runs((0, 1, 0), (1, 2, 1), (2, 4, 0)), [b, a]))
    assert torch.equal(read, runs((0, 1, 1), (1, 2, 0), (2, 4, 1), none))
    places.assign(StepAdapters(runs((3, 4, 0)), [a]))
    assert torch.equal(read, runs((3, 4, 0), none, none, none))
    assert places.of(linear).runs is read
