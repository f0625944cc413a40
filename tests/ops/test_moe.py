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


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_route_takes_the_likeliest(ops: Ops, device: torch.device, rows: int, normalize: bool) -> None:
    logits = torch.randn(rows, 61, device=device) * 3
    ids, probabilities = ops.route(logits, CHOSEN, normalize)
    want, want_ids = torch.softmax(logits.double(), 1).topk(CHOSEN)
    if normalize:
        want = want / want.sum(1, keepdim=True)
    assert (ids.dtype, probabilities.dtype) == (torch.int32, torch.float32)
    assert torch.equal(ids.long(), want_ids)
    assert_rounded_once(probabilities, want)


def test_of_equal_experts_the_lower_ids_are_taken(ops: Ops, device: torch.device) -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 2.0], [0.0] * 5, [-1.0, 3.0, 3.0, -1.0, 5.0]], device=device)
    assert ops.route(logits, 3, False)[0].tolist() == [[1, 3, 4], [0, 1, 2], [4, 1, 2]]
    assert ops.route(logits, 5, False)[0].tolist() == [[1, 3, 4, 0, 2], [0, 1, 2, 3, 4], [4, 1, 2, 0, 3]]


def test_a_row_of_nan_is_sent_somewhere(ops: Ops, device: torch.device) -> None:
    logits = torch.randn(3, 5, device=device)
    clean = ops.route(logits, 4, True)
    logits[1] = torch.nan
    logits[2, 3] = torch.nan
    ids, probabilities = ops.route(logits, 4, True)
    assert all(len(set(row) & set(range(5))) == 4 for row in ids.tolist())
    assert probabilities[1:].isnan().all()
    assert torch.equal(ids[0], clean[0][0])
    assert torch.equal(probabilities[0], clean[1][0])


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


def test_a_gated_update_is_added(ops: Ops, device: torch.device) -> None:
    gate, x, total = (torch.randn(9, size, device=device) * 3 for size in (1, 37, 37))
    want = total.double() + torch.sigmoid(gate.double()) * x.double()
    ops.add_gated(gate, x, total)
    assert_rounded_once(total, want)


@dtypes
@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 2), (4, 1), (1, 1)])
def test_qk_norm_is_rms_norm_of_each_query_and_key_head(
    ops: Ops, device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int
) -> None:
    head_dim = 24
    qkv = (torch.randn(7, (heads + 2 * kv_heads) * head_dim, device=device) * 20).to(dtype)
    query_weight, key_weight = (torch.randn(head_dim, device=device).to(dtype) for _ in range(2))
    before = qkv.view(7, -1, head_dim).clone()
    ops.qk_norm(qkv, query_weight, key_weight, kv_heads, 1e-6)
    after = qkv.view(7, -1, head_dim)
    for head in range(heads + kv_heads):
        weight = query_weight if head < heads else key_weight
        assert torch.equal(after[:, head], ops.rms_norm(before[:, head].contiguous(), weight, 1e-6))
    assert torch.equal(after[:, heads + kv_heads :], before[:, heads + kv_heads :])


def test_shapes_that_do_not_fit_are_refused(ops: Ops, device: torch.device) -> None:
    with pytest.raises(ValueError, match="6 of 5 experts cannot be chosen"):
        ops.route(torch.randn(2, 5, device=device), 6, False)
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
    with pytest.raises(ValueError, match="qkv has 90 columns"):
        ops.qk_norm(
            torch.randn(2, 90, device=device), torch.ones(32, device=device), torch.ones(32, device=device), 1, 0
        )
