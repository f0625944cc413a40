import pytest
import torch

from ops.interface import Ops
from tests.ops.exact import assert_rounded_once

CHOSEN = 3


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


def test_a_gated_update_is_added(ops: Ops, device: torch.device) -> None:
    gate, x, total = (torch.randn(9, size, device=device) * 3 for size in (1, 37, 37))
    want = total.double() + torch.sigmoid(gate.double()) * x.double()
    ops.add_gated(gate, x, total)
    assert_rounded_once(total, want)


def test_more_experts_than_there_are_are_refused(ops: Ops, device: torch.device) -> None:
    with pytest.raises(ValueError, match="6 of 5 experts cannot be chosen"):
        ops.route(torch.randn(2, 5, device=device), 6, False)
