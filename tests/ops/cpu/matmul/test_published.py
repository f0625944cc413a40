"""How the inputs of a published weight are dealt out."""

import torch

from ops.cpu.matmul.published import cut_into_runs


def test_runs_are_a_leaf_s_own() -> None:
    groups = torch.tensor([0] * 6 + [1] * 2 + [1] * 4 + [0] * 4)
    runs = cut_into_runs(groups, 2)
    assert runs.lengths.tolist() == [8, 4, 4, 4]
    assert runs.groups.tolist() == [0, 1, 0, 1]
    assert runs.leaf_runs.tolist() == [0, 2, 4]
    assert runs.order.tolist() == [0, 1, 2, 3, 4, 5, -1, -1, 6, 7, -1, -1, 12, 13, 14, 15, 8, 9, 10, 11, -1, -1, -1, -1]
