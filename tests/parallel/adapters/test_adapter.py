"""What of an adapter a rank computes."""

import torch

from parallel.adapters.adapter import Factors, ShardAdapter, StepAdapters, parts_of

DOWN, UP = torch.arange(8.0).view(2, 4), torch.arange(12.0).view(6, 2)


def test_a_part_is_of_a_ranks_outputs_and_inputs() -> None:
    part = Factors(DOWN, UP, 0.5).part(slice(2, 4), slice(1, 3), slice(7, 9))
    assert torch.equal(part.down, DOWN[:, 1:3]) and torch.equal(part.up, UP[2:4])
    assert (part.outputs, part.scale) == (slice(7, 9), 0.5)
    assert part.down.is_contiguous() and part.up.is_contiguous()


def test_merged_linears_keep_their_places_if_one_has_no_adapter() -> None:
    factors = {"attention.q": Factors(DOWN, UP, 1.0), "attention.v": Factors(DOWN, UP, 2.0)}
    outputs = {"q": slice(0, 6), "k": slice(0, 2), "v": slice(4, 6)}
    q, v = parts_of(factors, "attention", outputs)
    assert (q.outputs, q.scale, len(q.up)) == (slice(0, 6), 1.0, 6)
    assert (v.outputs, v.scale, v.up.tolist()) == (slice(8, 10), 2.0, UP[4:6].tolist())
    assert parts_of(factors, "mlp", outputs) == []


def test_a_linear_that_no_adapter_of_the_step_changes_has_none() -> None:
    changed, other = object(), object()
    adapter = ShardAdapter()
    prepared = torch.zeros(1)
    adapter.add(changed, prepared)
    runs = torch.tensor([[0, 3, 1]], dtype=torch.int32)
    step = StepAdapters(runs, [ShardAdapter(), adapter])
    adapted = step.of(changed)
    assert adapted is not None
    assert adapted.runs is runs and list(adapted.slots) == [None, prepared]
    assert step.of(other) is None
