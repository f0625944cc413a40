import pytest
import torch

from ops.logits.rows import rows_of


def test_an_element_belongs_to_the_row_whose_part_it_is_in(device: torch.device) -> None:
    logits = torch.zeros(4, 9, device=device)
    starts = torch.tensor([0, 2, 2, 3, 5], dtype=torch.int32, device=device)
    ids = torch.zeros(5, dtype=torch.int32, device=device)
    assert rows_of(logits, starts, ids).tolist() == [0, 0, 2, 3, 3]
    with pytest.raises(ValueError, match=r"starts has shape \[4\], not \[5\]"):
        rows_of(logits, starts[1:], ids)
