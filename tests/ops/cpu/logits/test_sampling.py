"""The sampler against the reference's: the same steps, sums in the same order, so the same tokens
but for e^x's last bit.
"""

import pytest
import torch

from ops import cpu, reference

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))

ROWS, VOCAB = 400, 4999


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_k": 7},
        {"top_k": 3000},
        {"top_p": 0.3},
        {"top_p": 0.97},
        {"top_p": 0.9999999},
        {"min_p": 0.01},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
def test_the_same_tokens_as_the_reference(filters: dict[str, float], spread: float) -> None:
    logits = torch.randn(ROWS, VOCAB) * spread
    columns = {
        "temperature": torch.linspace(0.2, 2.0, ROWS),
        "top_k": torch.full((ROWS,), int(filters.get("top_k", 0)), dtype=torch.int32),
        "top_p": torch.full((ROWS,), filters.get("top_p", 1.0)),
        "min_p": torch.full((ROWS,), filters.get("min_p", 0.0)),
        "seed": torch.arange(ROWS),
        "choice": torch.zeros(ROWS, dtype=torch.int32),
        "position": torch.arange(ROWS, dtype=torch.int32),
    }
    different = cpu.sample(logits, **columns)[0] != reference.sample(logits, **columns)[0]
    assert different.sum() <= 1, f"rows {different.nonzero().flatten().tolist()}"


@pytest.mark.parametrize("num_top", [0, 1, 20, 100, VOCAB])
def test_the_same_logprobs_as_the_reference(num_top: int) -> None:
    logits = torch.randn(30, VOCAB) * 4
    logits[:, 5:900] = logits[:, 900:1795]  # ties
    token_ids = torch.randint(0, VOCAB, (30,), dtype=torch.int32)
    got, want = cpu.token_logprobs(logits, token_ids, num_top), reference.token_logprobs(logits, token_ids, num_top)
    for ours, theirs in zip(got[1:3], want[1:3], strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(got[0], want[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got[3], want[3], rtol=1e-6, atol=1e-6)


def test_a_row_with_nan_gives_no_token_and_no_logprobs() -> None:
    logits = torch.randn(2, 300)
    logits[1, [250, 70]] = torch.nan
    zeros, ones = torch.zeros(2), torch.ones(2)
    index = torch.zeros(2, dtype=torch.int32)
    for temperature in (zeros, ones):
        drawn = cpu.sample(logits, temperature, index, ones, zeros, torch.zeros(2, dtype=torch.int64), index, index)
        assert drawn[:, 1].tolist() == [0, 0]
    logprobs, _, top_ids, top = cpu.token_logprobs(logits, drawn[0], 3)
    assert logprobs.isnan().tolist() == [False, True]
    assert top.isnan().all(dim=1).tolist() == [False, True]
    assert top_ids[1].tolist() == [0, 1, 2]


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="reach from 0 to 10, the vocabulary to 9"):
        cpu.token_logprobs(torch.zeros(2, 10), torch.tensor([0, 10], dtype=torch.int32), 0)
