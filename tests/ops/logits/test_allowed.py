import torch

from ops.logits.allowed import apply_allowed
from tests.ops.ragged import ragged

VOCAB = 50


def test_allowed_bans_every_other_token_of_rows_that_name_any(device: torch.device) -> None:
    logits = torch.randn(3, VOCAB, device=device)
    want = torch.full_like(logits, -torch.inf)
    want[0, [4, 7]] = logits[0, [4, 7]]
    want[1] = logits[1]
    want[2, 49] = logits[2, 49]
    apply_allowed(logits, *ragged([[7, 4, 4], [], [49]], device))
    assert torch.equal(logits, want)
