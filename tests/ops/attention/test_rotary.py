import pytest
import torch

from ops.interface import Ops
from tests.ops.caches import plain
from tests.ops.exact import assert_rounded_once, dtypes

HEADS, KV_HEADS, HEAD_DIM, BLOCK, ROWS = 6, 2, 8, 16, 11


@dtypes
def test_rotates_queries_and_keys_and_writes_only_the_slots(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    qkv = torch.randn(ROWS, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=device).to(dtype)
    positions = torch.randint(0, 40, (ROWS,), dtype=torch.int32, device=device)
    angles = torch.rand(40, HEAD_DIM // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    slots = torch.randperm(5 * BLOCK, device=device)[:ROWS].int()
    caches = [torch.full((5, KV_HEADS, BLOCK, HEAD_DIM), 7.0, dtype=dtype, device=device) for _ in range(2)]

    query = ops.rotary_and_cache(qkv, positions, cos_sin, slots, *caches)

    heads = qkv.double().view(ROWS, -1, HEAD_DIM)
    pairs = torch.complex(heads[..., : HEAD_DIM // 2], heads[..., HEAD_DIM // 2 :])
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[positions.long()][:, None]
    rotated = torch.cat((turned.real, turned.imag), dim=2).double()
    assert query.is_contiguous()
    assert_rounded_once(query, rotated[:, :HEADS])
    flat = [cache.transpose(1, 2).reshape(-1, KV_HEADS, HEAD_DIM) for cache in plain(ops, *caches)]
    assert_rounded_once(flat[0][slots.long()], rotated[:, HEADS:-KV_HEADS])
    assert torch.equal(flat[1][slots.long()].double(), heads[:, -KV_HEADS:])
    untouched = torch.ones(5 * BLOCK, dtype=torch.bool, device=device)
    untouched[slots.long()] = False
    assert all(cache[untouched].eq(7.0).all() for cache in flat)


def test_heads_that_do_not_fit_are_refused(ops: Ops, device: torch.device) -> None:
    cache = torch.zeros(2, KV_HEADS, BLOCK, HEAD_DIM, device=device)
    index = torch.zeros(1, dtype=torch.int32, device=device)
    table = torch.zeros(4, HEAD_DIM, device=device)
    with pytest.raises(ValueError, match="7 heads of 8"):
        ops.rotary_and_cache(torch.zeros(1, 7 * HEAD_DIM, device=device), index, table, index, cache, cache.clone())


def test_from_the_product_on_it_is_one_op_after_the_other(ops: Ops, device: torch.device) -> None:
    x, matrix = torch.randn(ROWS, 32, device=device), torch.randn((HEADS + 2 * KV_HEADS) * 32, 32, device=device)
    weight, table = ops.prepare_linear(matrix), torch.rand(40, 32, device=device)
    positions, slots = (torch.randperm(40, device=device)[:ROWS].int() for _ in range(2))
    one, two = ([torch.zeros(5, KV_HEADS, BLOCK, 32, device=device) for _ in range(2)] for _ in range(2))
    query = ops.linear_rotary_and_cache(x, weight, None, positions, table, slots, *one)
    assert torch.equal(query, ops.rotary_and_cache(ops.linear(x, weight, None), positions, table, slots, *two))
    assert all(torch.equal(got, want) for got, want in zip(one, two, strict=True))
    assert all(cache.any() for cache in one)
