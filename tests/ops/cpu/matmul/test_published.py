"""Weights that were published quantized: the reference's products, the same bits beside any rows
and however leaves are dealt out.
"""

from dataclasses import replace

import pytest
import torch

from ops import cpu, reference
from ops.cpu.matmul.published import cut_into_runs
from ops.published import PublishedKind, PublishedWeight, cat

LEAF = 448


def weight(kind: PublishedKind, num_out: int, num_in: int, *, dtype: torch.dtype, shuffled: bool) -> PublishedWeight:
    generator = torch.Generator().manual_seed(num_in)
    groups = (torch.arange(num_in) // 128).int()
    if shuffled:
        groups = groups[torch.randperm(num_in, generator=generator)]
    last = 16 if kind == "int4" else 256
    codes = torch.randint(0, last, (num_out, num_in), dtype=torch.uint8, generator=generator)
    num_groups = int(groups.max()) + 1
    scales = torch.rand(num_out, num_groups, generator=generator) / 100
    if kind == "fp8":
        return PublishedWeight(kind, dtype, codes.masked_fill((codes & 127) == 127, 1), None, scales, groups)
    zeros = torch.randint(0, last, (num_out, num_groups), generator=generator).short()
    return PublishedWeight(kind, dtype, codes, zeros, scales, groups)


def inputs(rows: int, num_in: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, num_in, generator=torch.Generator().manual_seed(rows)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_products_are_the_reference_s(kind: PublishedKind, shuffled: bool, dtype: torch.dtype) -> None:
    published = weight(kind, 72, 4 * LEAF, dtype=dtype, shuffled=shuffled)
    packed, plain = cpu.prepare_tree_linear(published, 4), reference.prepare_tree_linear(published, 4)
    whole = cpu.linear_tree(x := inputs(40, 4 * LEAF, dtype), packed)
    torch.testing.assert_close(whole, reference.linear_tree(x, plain), rtol=1e-4, atol=1e-4)
    for rows in (1, 2, 5, 14, 16):
        assert torch.equal(cpu.linear_tree(x[:rows].contiguous(), packed), whole[:rows]), rows
    halves = [slice(0, 2 * LEAF), slice(2 * LEAF, 4 * LEAF)]
    parts = [cpu.linear_tree(x[:, h].contiguous(), cpu.prepare_tree_linear(published.columns(h), 2)) for h in halves]
    assert torch.equal(parts[0] + parts[1], whole), "two ranks' sums are one rank's"


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_gate_and_up(kind: PublishedKind) -> None:
    published = weight(kind, 96, LEAF, dtype=torch.bfloat16, shuffled=False)
    x = inputs(9, LEAF, torch.bfloat16)
    want = reference.gate_up_silu(x, reference.prepare_gate_up(published))
    torch.testing.assert_close(cpu.gate_up_silu(x, cpu.prepare_gate_up(published)), want, rtol=2e-2, atol=1e-3)


def test_every_code_of_eight_bits_without_zero_points() -> None:
    """-128 is one of them."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(32, 1)
    groups = torch.zeros(256, dtype=torch.int32)
    published = PublishedWeight(
        "int8", torch.bfloat16, codes, torch.full((32, 1), 128).short(), torch.ones(32, 1), groups
    )
    rows = torch.eye(256, dtype=torch.bfloat16)
    found = cpu.linear_float32(rows, cpu.prepare_linear(published))
    assert torch.equal(found, (torch.arange(256.0) - 128)[:, None].expand(256, 32))


def test_runs_are_a_leaf_s_own() -> None:
    groups = torch.tensor([0] * 6 + [1] * 2 + [1] * 4 + [0] * 4)
    runs = cut_into_runs(groups, 2)
    assert runs.lengths.tolist() == [8, 4, 4, 4]
    assert runs.groups.tolist() == [0, 1, 0, 1]
    assert runs.leaf_runs.tolist() == [0, 2, 4]
    assert runs.order.tolist() == [0, 1, 2, 3, 4, 5, -1, -1, 6, 7, -1, -1, 12, 13, 14, 15, 8, 9, 10, 11, -1, -1, -1, -1]


def test_weights_that_are_multiplied_together_share_the_groups_that_all_have() -> None:
    first = weight("int4", 8, 256, dtype=torch.bfloat16, shuffled=False)
    second = weight("int4", 16, 256, dtype=torch.bfloat16, shuffled=True)
    both = cat([first, second])
    assert torch.equal(both.numbers(), torch.cat([first.numbers(), second.numbers()]))
    with pytest.raises(ValueError, match="quantized differently"):
        cat([first, replace(second, kind="int8")])


def rounding(num_in: int, dtype: torch.dtype, input_scale: float | None) -> PublishedWeight:
    generator = torch.Generator().manual_seed(num_in)
    codes = torch.randint(0, 256, (72, num_in), dtype=torch.uint8, generator=generator)
    scales = torch.rand(72, 1, generator=generator) / 1000
    groups = torch.zeros(num_in, dtype=torch.int32)
    return PublishedWeight("w8a8", dtype, codes, torch.full((72, 1), 128).short(), scales, groups, input_scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("input_scale", [None, 0.02])
@pytest.mark.parametrize("leaf", [448, 30])
def test_products_of_integers_are_the_reference_s_to_the_bit(
    leaf: int, input_scale: float | None, dtype: torch.dtype
) -> None:
    """On every level, since integers are added."""
    published = rounding(4 * leaf, dtype, input_scale)
    packed, plain = cpu.prepare_tree_linear(published, 4), reference.prepare_tree_linear(published, 4)
    whole = cpu.linear_tree(x := inputs(40, 4 * leaf, dtype), packed)
    assert torch.equal(whole, reference.linear_tree(x, plain))
    for rows in (1, 2, 5, 14, 16):
        assert torch.equal(cpu.linear_tree(x[:rows].contiguous(), packed), whole[:rows]), rows
    x[3, 5] = torch.nan
    found = cpu.linear_tree(x, packed).isnan()
    assert found[3].all()
    assert not found[torch.arange(40) != 3].any()


def test_gate_and_up_of_integers() -> None:
    published, x = rounding(LEAF, torch.float32, None), inputs(9, LEAF, torch.float32)
    want = reference.gate_up_silu(x, reference.prepare_gate_up(published))
    torch.testing.assert_close(cpu.gate_up_silu(x, cpu.prepare_gate_up(published)), want)
