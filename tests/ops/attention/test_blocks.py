import pytest
import torch

from ops.interface import Ops


def test_copy_blocks(ops: Ops, device: torch.device) -> None:
    cache = torch.randn(6, 2, 16, 8, device=device)
    before = cache.clone()
    ops.copy_blocks(cache, torch.tensor([[1, 4], [1, 5], [2, 0]], dtype=torch.int32, device=device))
    assert torch.equal(cache, before[torch.tensor([2, 1, 2, 3, 1, 1], device=device)])


def test_swap_blocks_goes_out_and_comes_back(ops: Ops, device: torch.device) -> None:
    cache, host = torch.randn(6, 2, 16, 8, device=device), torch.zeros(3, 2, 16, 8)
    before = cache.clone()
    ops.swap_blocks(cache, host, torch.tensor([[4, 0], [1, 2]], dtype=torch.int32, device=device))
    assert torch.equal(host[[0, 2]], before[[4, 1]].cpu())
    assert host[1].eq(0).all()
    ops.swap_blocks(host, cache, torch.tensor([[0, 3], [2, 4]], dtype=torch.int32, device=device))
    assert torch.equal(cache, before[torch.tensor([0, 1, 2, 4, 1, 5], device=device)])


def test_no_pairs_change_nothing(ops: Ops, device: torch.device) -> None:
    cache = torch.randn(6, 2, 16, 8, device=device)
    before = cache.clone()
    ops.copy_blocks(cache, torch.zeros(0, 2, dtype=torch.int32, device=device))
    assert torch.equal(cache, before)


def test_caches_of_different_shape_are_refused(ops: Ops, device: torch.device) -> None:
    pairs = torch.zeros(1, 2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="target has shape"):
        ops.swap_blocks(torch.zeros(6, 2, 16, 8, device=device), torch.zeros(6, 2, 16, 4, device=device), pairs)
