"""Tokens that a step begins with."""

import pytest
import torch

from ops.interface import Ops


def ints(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@pytest.mark.parametrize("num_rows", [1, 3, 300])
def test_tokens_that_were_drawn_are_filled_in_and_all_are_kept(ops: Ops, device: torch.device, num_rows: int) -> None:
    known = [100 + row for row in range(num_rows)]
    drawn = ints([7, 8, 9, 10], device)
    sources = [(3 - row % 4) if row % 3 == 2 else -1 for row in range(num_rows)]
    slots = [2 * row + 5 for row in range(num_rows)]
    input_ids, token_ids = ints(known, device), torch.full((2 * num_rows + 9,), 55, dtype=torch.int32, device=device)
    ops.place_tokens(input_ids, ints(sources, device), drawn, ints(slots, device), token_ids)
    expected = [ident if source < 0 else 7 + source for ident, source in zip(known, sources, strict=True)]
    assert input_ids.tolist() == expected
    assert token_ids[slots].tolist() == expected
    assert int((token_ids == 55).sum()) == len(token_ids) - num_rows
    assert drawn.tolist() == [7, 8, 9, 10]


def test_without_a_history_none_is_kept(ops: Ops, device: torch.device) -> None:
    input_ids = ints([1, 2], device)
    ops.place_tokens(input_ids, ints([-1, 0], device), ints([9], device), None, None)
    assert input_ids.tolist() == [1, 9]


def test_slots_without_a_history_are_refused(ops: Ops, device: torch.device) -> None:
    with pytest.raises(ValueError, match="slots and token_ids are given together"):
        ops.place_tokens(ints([1], device), ints([0], device), ints([9], device), ints([3], device), None)
