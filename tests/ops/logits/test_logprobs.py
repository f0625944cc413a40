import pytest
import torch

from ops.interface import Ops


@pytest.mark.parametrize("vocab_size", [1, 64, 1000])
@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_against_float64(ops: Ops, device: torch.device, vocab_size: int, num_top: int) -> None:
    num_top = min(num_top, vocab_size)
    logits = torch.randn(30, vocab_size, device=device) * 4
    token_ids = torch.randint(0, vocab_size, (30,), dtype=torch.int32, device=device)
    logprobs, ranks, top_ids, top = ops.token_logprobs(logits, token_ids, num_top)
    want = logits.double().log_softmax(1)
    torch.testing.assert_close(logprobs, want.gather(1, token_ids.long()[:, None])[:, 0].float(), rtol=1e-6, atol=1e-6)
    order = want.argsort(dim=1, descending=True, stable=True)
    assert ranks.tolist() == [1 + row.tolist().index(token) for row, token in zip(order, token_ids, strict=True)]
    assert torch.equal(top_ids, order[:, :num_top].int())
    torch.testing.assert_close(top, want.gather(1, order[:, :num_top]).float(), rtol=1e-6, atol=1e-6)
    assert logprobs.dtype == top.dtype == torch.float32
    assert ranks.dtype == top_ids.dtype == torch.int32


def test_the_lower_id_comes_first_where_equal(ops: Ops, device: torch.device) -> None:
    logits = torch.full((2, 400), -2.0, device=device)
    logits[0, [399, 10, 200]] = 3.0
    logits[1, 5] = -0.0
    logits[1, 3] = 0.0
    token_ids = torch.tensor([200, 5], dtype=torch.int32, device=device)
    _, ranks, top_ids, _ = ops.token_logprobs(logits, token_ids, 5)
    assert ranks.tolist() == [2, 2]
    assert top_ids.tolist() == [[10, 200, 399, 0, 1], [3, 5, 0, 1, 2]]


def test_banned_tokens_have_no_probability(ops: Ops, device: torch.device) -> None:
    logits = torch.full((1, 100), -torch.inf, device=device)
    logits[0, 42] = 1e4
    logprobs, ranks, top_ids, top = ops.token_logprobs(logits, torch.tensor([7], dtype=torch.int32, device=device), 2)
    assert logprobs[0] == -torch.inf
    assert ranks[0] == 9
    assert top_ids.tolist() == [[42, 0]]
    assert top.tolist() == [[0.0, -torch.inf]]


def test_more_than_the_vocabulary_is_refused(ops: Ops, device: torch.device) -> None:
    with pytest.raises(ValueError, match="num_top=11"):
        ops.token_logprobs(torch.zeros(1, 10, device=device), torch.zeros(1, dtype=torch.int32, device=device), 11)
