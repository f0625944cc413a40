"""Sizes that checks give, and refusals that no op's own test makes."""

from collections.abc import Callable

import pytest
import torch

from ops import checks


def test_the_sizes_are_those_of_the_arguments() -> None:
    floats, ints = torch.zeros(3), torch.zeros(3, dtype=torch.int32)
    columns = floats, ints, floats, floats, ints.long(), ints, ints
    assert checks.sample_sizes(torch.zeros(3, 7), *columns) == (3, 7)
    assert checks.logprobs_sizes(torch.zeros(3, 7), ints, 7) == (3, 7)
    assert checks.qk_norm_sizes(torch.zeros(5, 7 * 4), torch.ones(4), torch.ones(4), 2) == (5, 3, 4)
    assert checks.route_sizes(torch.zeros(3, 7), 7) == (3, 7)
    assert checks.gated_sizes(torch.zeros(3, 1), torch.zeros(3, 7), torch.zeros(3, 7)) == (3, 7)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: checks.logprobs_sizes(torch.zeros(1, 7), torch.zeros(1, dtype=torch.int32), 8), "num_top=8 of 7"),
        (lambda: checks.logprobs_sizes(torch.zeros(1, 7), torch.zeros(1), 1), "token_ids is torch.float32"),
        (lambda: checks.qk_norm_sizes(torch.zeros(1, 16), torch.ones(4), torch.ones(4), 2), "heads of 4, 2 of keys"),
        (lambda: checks.route_sizes(torch.zeros(1, 7), 0), "0 of 7 experts"),
        (lambda: checks.gated_sizes(torch.zeros(3, 2), torch.zeros(3, 7), torch.zeros(3, 7)), "gate has shape"),
        (lambda: checks.check_gate_up(torch.zeros(5, 4)), "weight has 5 rows"),
        (lambda: checks.check_leaves(torch.zeros(4, 256), 256), "256 inputs cannot be cut into 256 leaves"),
        (lambda: checks.check_leaves(torch.zeros(4, 12), 8), "12 inputs cannot be cut into 8 leaves"),
        (lambda: checks.check_expert_leaves(0, 1), "0 experts"),
    ],
)
def test_what_does_not_fit_is_named(check: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check()
