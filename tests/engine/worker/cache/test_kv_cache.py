import mmap

import pytest
import torch

from engine.worker.cache.kv_cache import CacheShape, make_cache
from engine.worker.device.cpu import HUGE_BYTES, CpuDevice

SHAPE = CacheShape(num_layers=3, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)


def test_a_block_is_keys_and_values_of_every_layer() -> None:
    cache = make_cache(SHAPE, 5, 0, CpuDevice())
    num_bytes = sum(tensor.numel() * tensor.element_size() for layer in cache.device for tensor in layer)
    assert num_bytes == 5 * SHAPE.block_bytes == 5 * 2 * 3 * 2 * 16 * 8 * 2


def test_caches_are_zero_contiguous_and_apart() -> None:
    cache = make_cache(SHAPE, 5, 2, CpuDevice())
    assert len(cache.device) == len(cache.host) == 3
    for layers, num_blocks in ((cache.device, 5), (cache.host, 2)):
        for tensor in (tensor for layer in layers for tensor in layer):
            assert (tensor.shape, tensor.dtype) == ((num_blocks, 2, 16, 8), torch.bfloat16)
            assert tensor.is_contiguous()
            assert not tensor.any()
    cache.device[0][0].fill_(1)
    cache.host_token_ids.fill_(7)
    assert not cache.device[0][1].any()
    assert not cache.host[0][0].any()


def test_no_host_blocks() -> None:
    cache = make_cache(SHAPE, 2, 0, CpuDevice())
    assert [tuple(keys.shape) for keys, _ in cache.host] == [(0, 2, 16, 8)] * 3
    assert cache.host_token_ids.shape == (0, 16)


def test_token_ids_are_moved_with_the_keys_and_values_they_are_of() -> None:
    cache = make_cache(SHAPE, 5, 2, CpuDevice())
    assert [tuple(tensor.shape) for tensor in (cache.token_ids, cache.host_token_ids)] == [(5, 16), (2, 16)]
    moved = list(cache.moved())
    assert len(moved) == 2 * SHAPE.num_layers + 1
    assert moved[-1][0] is cache.token_ids
    assert moved[-1][1] is cache.host_token_ids


def test_a_system_without_huge_pages_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # which no system knows
    assert not CpuDevice().zeros((HUGE_BYTES,), torch.uint8).any()
