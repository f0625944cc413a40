import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ops.interface import Ops
from ops.tree import add_tree
from tests.ops.exact import assert_rounded_once, dtypes

EXPERTS, HIDDEN, INNER, CHOSEN = 8, 48, 32, 3


def random_experts(dtype: torch.dtype, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    return [
        (torch.randn(2 * INNER, HIDDEN, device=device).to(dtype), torch.randn(HIDDEN, INNER, device=device).to(dtype))
        for _ in range(EXPERTS)
    ]


@dtypes
@pytest.mark.parametrize("rows", [0, 1, 33])
def test_experts_are_weighted_and_added(ops: Ops, device: torch.device, dtype: torch.dtype, rows: int) -> None:
    experts = random_experts(dtype, device)
    x = torch.randn(rows, HIDDEN, device=device).to(dtype)
    ids, weights = ops.route(torch.randn(rows, EXPERTS, device=device), CHOSEN, True)
    got = ops.experts_tree(x, ids, weights, ops.prepare_experts(experts, 0, 4))
    want = torch.zeros(rows, HIDDEN, dtype=torch.float64, device=device)
    for slot in range(CHOSEN):
        for row, expert in enumerate(ids[:, slot].tolist()):
            gate, up = (x[row].double() @ experts[expert][0].double().T).chunk(2)
            inner = (F.silu(gate) * up).to(dtype).double()
            want[row] += weights[row, slot].double() * (inner @ experts[expert][1].double().T)
    assert got.dtype == torch.float32
    slack = {torch.float32: 2e-6, torch.bfloat16: 2e-3, torch.float16: 3e-4}[dtype]  # inner may be cast to a neighbour
    assert_rounded_once(got, want, slack)


@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_have_the_same_sum_however_many_ranks_share_them(ops: Ops, device: torch.device, ranks: int) -> None:
    experts = random_experts(torch.float32, device)
    x = torch.randn(20, HIDDEN, device=device)
    ids, weights = ops.route(torch.randn(20, EXPERTS, device=device), CHOSEN, False)
    whole = ops.experts_tree(x, ids, weights, ops.prepare_experts(experts, 0, 4))
    size = EXPERTS // ranks
    parts = [
        ops.experts_tree(x, ids, weights, ops.prepare_experts(experts[first : first + size], first, 4 // ranks))
        for first in range(0, EXPERTS, size)
    ]
    assert torch.equal(add_tree(parts), whole)
    if ranks > 2:
        assert not torch.equal(sum(parts), whole), "these numbers do not tell a tree from a chain"


def test_a_row_knows_nothing_of_those_that_go_to_its_experts_too(ops: Ops, device: torch.device) -> None:
    if not ops.EXACT:
        pytest.skip(f"the {ops.NAME} backend is not exact")
    experts = ops.prepare_experts(random_experts(torch.bfloat16, device)[2:6], 2, 2)
    x, logits = torch.randn(30, HIDDEN, device=device).bfloat16(), torch.randn(30, EXPERTS, device=device)
    ids, weights = ops.route(logits, CHOSEN, True)
    whole = ops.experts_tree(x, ids, weights, experts)
    for rows in (slice(0, 1), slice(7, 12)):
        alone = ops.route(logits[rows], CHOSEN, True)
        assert torch.equal(alone[0], ids[rows])
        assert torch.equal(alone[1], weights[rows])
        assert torch.equal(ops.experts_tree(x[rows], *alone, experts), whole[rows])


def test_shapes_that_do_not_fit_are_refused(ops: Ops, device: torch.device) -> None:
    experts = random_experts(torch.float32, device)
    with pytest.raises(ValueError, match="8 experts cannot be cut into 3 leaves"):
        ops.prepare_experts(experts, 0, 3)
    with pytest.raises(ValueError, match="5 experts cannot be cut into 2 leaves"):
        ops.prepare_experts(experts[:5], 0, 2)
    prepared = ops.prepare_experts(experts, 0, 1)
    ids, weights = ops.route(torch.randn(2, EXPERTS, device=device), 2, False)
    with pytest.raises(ValueError, match=r"x has shape \[2, 47\]"):
        ops.experts_tree(torch.randn(2, 47, device=device), ids, weights, prepared)
    with pytest.raises(ValueError, match=r"weights has shape \[1, 2\]"):
        ops.experts_tree(torch.randn(2, HIDDEN, device=device), ids, weights[:1], prepared)
