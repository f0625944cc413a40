import pytest
import torch

from ops.tree import add_tree


def test_tree_adds_neighbours_first() -> None:
    one, tiny = torch.tensor(1.0), torch.tensor(2.0**-24)
    assert add_tree([one, tiny, tiny, tiny]) == 1.0 + 2.0**-23
    assert add_tree([one]) is one
    with pytest.raises(AssertionError):
        add_tree([one, one, one])
