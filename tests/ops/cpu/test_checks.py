import pytest
import torch

from ops.cpu.checks import cache_sizes, sizes


def test_sizes() -> None:
    assert sizes("x", torch.zeros(2, 0, 3), 3) == (2, 0, 3)
    with pytest.raises(ValueError, match=r"x has shape \[2, 3\], not \[None, None, None\]"):
        sizes("x", torch.zeros(2, 3), 3)
    with pytest.raises(ValueError, match="x is not contiguous"):
        sizes("x", torch.zeros(3, 2).T, 2)


def test_caches_are_alike() -> None:
    keys = torch.zeros(4, 2, 16, 8)
    assert cache_sizes(keys, keys.clone()) == (4, 2, 16, 8)
    with pytest.raises(ValueError, match=r"value_cache has shape \[4, 2, 16, 9\]"):
        cache_sizes(keys, torch.zeros(4, 2, 16, 9))
    with pytest.raises(ValueError, match=r"value_cache is torch\.bfloat16"):
        cache_sizes(keys, keys.bfloat16())
