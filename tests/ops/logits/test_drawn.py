import torch

from ops.logits.drawn import drawn


def test_a_row_whose_largest_logit_is_not_finite_has_no_token(device: torch.device) -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[1.0, -inf], [nan, 1.0], [inf, 1.0], [-inf, -inf], [-inf, nan], [2.0, 3.0]], device=device)
    tokens = torch.tensor([0, 1, 1, 1, 1, 1], device=device)
    assert drawn(tokens, logits).tolist() == [[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1]]
    assert drawn(tokens, logits).dtype == torch.int32
