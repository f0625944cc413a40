import torch

from ops.logits.bias import apply_bans, apply_bias
from tests.ops.ragged import ragged

VOCAB = 50


def test_bias_adds_and_bans(device: torch.device) -> None:
    logits = torch.randn(3, VOCAB, device=device)
    want = logits.clone()
    want[0, 4] += 2.5
    want[0, 7] = -torch.inf
    want[2, 7] -= 1.25
    values = torch.tensor([2.5, 3.0, -torch.inf, -1.25], device=device)
    apply_bias(logits, *ragged([[4, 7, 7], [], [7]], device), values)
    assert torch.equal(logits, want)


def test_bans_depend_on_the_token_before(device: torch.device) -> None:
    logits = torch.randn(3, VOCAB, device=device)
    want = logits.clone()
    want[0, 7] = want[2, 4] = -torch.inf
    starts, ids = ragged([[4, 7, 7], [4], [4]], device)
    last_ids = torch.tensor([1, 2, 3], dtype=torch.int32, device=device)
    banning_ids = torch.tensor([2, 1, 1, 1, 3], dtype=torch.int32, device=device)
    apply_bans(logits, last_ids, starts, banning_ids, ids)
    assert torch.equal(logits, want)
