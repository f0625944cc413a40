"""Weights that were published quantized: the products of the numbers that they stand for, the same
bits beside any rows and however leaves are dealt out.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from ops import UnavailableBackend, reference
from ops.interface import Ops
from ops.published import PublishedKind, PublishedWeight, cat

LEAF, LEAVES = 448, 4
kinds = pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])


def weight(
    kind: PublishedKind,
    num_out: int,
    num_in: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    size: int = 128,
    shuffled: bool = False,
    has_zeros: bool = True,
) -> PublishedWeight:
    groups = (torch.arange(num_in) // size).int()
    if shuffled:
        groups = groups[torch.randperm(num_in)]
    last = 16 if kind == "int4" else 256
    codes = torch.randint(0, last, (num_out, num_in), dtype=torch.uint8)
    num_groups = int(groups.max()) + 1
    scales = torch.rand(num_out, num_groups) / 100
    zeros = None
    if kind == "fp8":
        codes = codes.masked_fill((codes & 127) == 127, 1)
    elif has_zeros:
        zeros = torch.randint(0, last, (num_out, num_groups)).short()
    else:
        zeros = torch.full((num_out, num_groups), last // 2).short()
    together = None if shuffled else size
    return PublishedWeight(kind, dtype, codes, zeros, scales, groups, together=together).to(device)


def inputs(rows: int, num_in: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(rows, num_in, device=device).to(dtype)


def multiplied(ops: Ops, published: PublishedWeight) -> torch.Tensor:
    """The numbers that a backend multiplies, float64: GPUs round them to the model's dtype."""
    numbers = published.numbers()
    return (numbers.to(published.dtype) if ops.NAME.startswith("triton") else numbers).double()


def check_bits(ops: Ops, published: PublishedWeight, x: torch.Tensor) -> torch.Tensor:
    """The whole product, after that of fewer rows and of two ranks have been compared with it."""
    packed = ops.prepare_tree_linear(published, LEAVES)
    whole = ops.linear_tree(x, packed)
    for rows in (rows for rows in (1, 2, 5, 14, 16, 17, 31, 32, 33, 64) if rows < len(x)):
        assert torch.equal(ops.linear_tree(x[:rows].contiguous(), packed), whole[:rows]), rows
    middle = published.shape[1] // 2
    halves = [slice(0, middle), slice(middle, 2 * middle)]
    parts = [
        ops.linear_tree(x[:, half].contiguous(), ops.prepare_tree_linear(published.columns(half), LEAVES // 2))
        for half in halves
    ]
    assert torch.equal(parts[0] + parts[1], whole), "two ranks' sums are one rank's"
    return whole


@dtypes
@kinds
@pytest.mark.parametrize("shuffled", [False, True])
def test_products_are_the_reference_s(
    ops: Ops, device: torch.device, kind: PublishedKind, shuffled: bool, dtype: torch.dtype
) -> None:
    published = weight(kind, 72, LEAVES * LEAF, dtype=dtype, device=device, shuffled=shuffled)
    x = inputs(70 if ops.NAME == "cpu" else 20, LEAVES * LEAF, dtype, device)  # several tiles
    want = x.double() @ multiplied(ops, published).T
    found = check_bits(ops, published, x) if ops.EXACT else ops.linear_tree(x, ops.prepare_tree_linear(published, 4))
    torch.testing.assert_close(found, want.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "leaf"), [(16, 48), (96, 64), (32, 32), (1000, 250), (24, 60)])
def test_groups_of_any_size(ops: Ops, device: torch.device, size: int, leaf: int) -> None:
    published = weight("int4", 24, LEAVES * leaf, dtype=torch.float32, device=device, size=size, has_zeros=False)
    x = inputs(16, LEAVES * leaf, torch.float32, device)
    want = reference.linear_tree(x, reference.prepare_tree_linear(published, LEAVES))
    found = check_bits(ops, published, x) if ops.EXACT else ops.linear_tree(x, ops.prepare_tree_linear(published, 4))
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@kinds
@pytest.mark.parametrize("shuffled", [False, True])
def test_gate_and_up(ops: Ops, device: torch.device, kind: PublishedKind, shuffled: bool) -> None:
    published = weight(kind, 96, LEAF, dtype=torch.bfloat16, device=device, shuffled=shuffled)
    x = inputs(9, LEAF, torch.bfloat16, device)
    gate, up = (x.double() @ multiplied(ops, published).T).chunk(2, dim=1)
    want = (torch.nn.functional.silu(gate) * up).bfloat16()
    torch.testing.assert_close(ops.gate_up_silu(x, ops.prepare_gate_up(published)), want, rtol=2e-2, atol=1e-3)


@kinds
def test_a_bias_and_several_linears_as_one(ops: Ops, device: torch.device, kind: PublishedKind) -> None:
    parts = [weight(kind, rows, LEAF, dtype=torch.float32, device=device, has_zeros=rows > 32) for rows in (32, 48)]
    x, bias = inputs(3, LEAF, torch.float32, device), torch.randn(80, device=device)
    want = torch.cat([x @ part.numbers().T for part in parts], 1) + bias
    torch.testing.assert_close(ops.linear(x, ops.prepare_linear(cat(parts)), bias), want, rtol=1e-4, atol=1e-4)


def test_every_code_of_eight_bits_without_zero_points(ops: Ops, device: torch.device) -> None:
    """-128 is one of them."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(32, 1)
    groups = torch.zeros(256, dtype=torch.int32)
    zeros = torch.full((32, 1), 128).short()
    published = PublishedWeight("int8", torch.bfloat16, codes, zeros, torch.ones(32, 1), groups).to(device)
    rows = torch.eye(256, dtype=torch.bfloat16, device=device)
    found = ops.linear_float32(rows, ops.prepare_linear(published))
    assert torch.equal(found.cpu(), (torch.arange(256.0) - 128)[:, None].expand(256, 32))


@kinds
def test_codes_that_are_not_contiguous_are_refused(ops: Ops, device: torch.device, kind: PublishedKind) -> None:
    published = weight(kind, 64, 64, dtype=torch.float32, device=device)
    with pytest.raises(ValueError, match="weight is not contiguous"):
        ops.prepare_linear(replace(published, codes=published.codes.T))


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_experts(ops: Ops, device: torch.device, kind: PublishedKind) -> None:
    def expert(has_zeros: bool) -> tuple[PublishedWeight, PublishedWeight]:
        common = {"dtype": torch.float32, "device": device, "size": 64, "has_zeros": has_zeros}
        return weight(kind, 2 * 64, 128, **common), weight(kind, 128, 64, **common)

    experts = [expert(index % 2 == 0) for index in range(4)]
    x = inputs(11, 128, torch.float32, device)
    ids, weights = ops.route(torch.randn(11, 4, device=device), 2, True)
    found = ops.experts_tree(x, ids, weights, ops.prepare_experts(experts, 0, 2))
    want = reference.experts_tree(x, ids, weights, reference.prepare_experts(experts, 0, 2))
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)


def test_experts_of_small_groups(ops: Ops, device: torch.device) -> None:
    """Are refused where they are not computed."""
    common = {"dtype": torch.float32, "device": device, "size": 16}
    experts = [(weight("int4", 64, 64, **common), weight("int4", 64, 32, **common))] * 2
    if ops.NAME.startswith("triton"):
        with pytest.raises(UnavailableBackend, match="groups of a multiple of 32; device=cpu would work"):
            ops.prepare_experts(experts, 0, 1)
    else:
        check_two_experts(ops, experts, device)


def test_experts_of_which_some_are_quantized(ops: Ops, device: torch.device) -> None:
    """Likewise."""
    common = {"dtype": torch.float32, "device": device, "size": 64}
    coded = weight("int4", 2 * 64, 64, **common), weight("int4", 64, 64, **common)
    experts = [coded, tuple(part.numbers() for part in coded)]
    if ops.NAME.startswith("triton"):
        with pytest.raises(ValueError, match="only some experts of a layer are quantized"):
            ops.prepare_experts(experts, 0, 1)
    else:
        check_two_experts(ops, experts, device)


def check_two_experts(ops: Ops, experts: Sequence[tuple[Any, Any]], device: torch.device) -> None:
    """Of 64 columns: the reference's sums."""
    x, weights = inputs(3, 64, torch.float32, device), torch.ones(3, 1, device=device)
    ids = torch.tensor([[0], [1], [0]], dtype=torch.int32, device=device)
    found = ops.experts_tree(x, ids, weights, ops.prepare_experts(experts, 0, 1))
    want = reference.experts_tree(x, ids, weights, reference.prepare_experts(experts, 0, 1))
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)


def test_weights_that_are_multiplied_together_share_the_groups_that_all_have() -> None:
    cpu = torch.device("cpu")
    first = weight("int4", 8, 256, dtype=torch.bfloat16, device=cpu, shuffled=True)
    second = weight("int4", 16, 256, dtype=torch.bfloat16, device=cpu, shuffled=True)
    both = cat([first, second])
    assert torch.equal(both.numbers(), torch.cat([first.numbers(), second.numbers()]))
    with pytest.raises(ValueError, match="quantized differently"):
        cat([first, replace(second, kind="int8")])


def rounding(num_in: int, dtype: torch.dtype, input_scale: float | None, device: torch.device) -> PublishedWeight:
    codes = torch.randint(0, 256, (72, num_in), dtype=torch.uint8)
    scales = torch.rand(72, 1) / 1000
    groups = torch.zeros(num_in, dtype=torch.int32)
    zeros = torch.full((72, 1), 128).short()
    return PublishedWeight("w8a8", dtype, codes, zeros, scales, groups, input_scale, 0).to(device)


@dtypes
@pytest.mark.parametrize("input_scale", [None, 0.02])
@pytest.mark.parametrize("leaf", [LEAF, 30])
def test_products_of_integers_are_the_reference_s_to_the_bit(
    ops: Ops, device: torch.device, leaf: int, input_scale: float | None, dtype: torch.dtype
) -> None:
    """On every level, since integers are added."""
    published = rounding(LEAVES * leaf, dtype, input_scale, device)
    x = inputs(70 if ops.NAME == "cpu" else 20, LEAVES * leaf, dtype, device)
    plain = reference.prepare_tree_linear(published, LEAVES)
    assert torch.equal(check_bits(ops, published, x), reference.linear_tree(x, plain))
    x[3, 5] = torch.nan
    found = ops.linear_tree(x, ops.prepare_tree_linear(published, LEAVES)).isnan()
    assert found[3].all()
    assert not found[torch.arange(len(x), device=device) != 3].any()


def test_gate_and_up_of_integers(ops: Ops, device: torch.device) -> None:
    published, x = rounding(LEAF, torch.float32, None, device), inputs(9, LEAF, torch.float32, device)
    want = reference.gate_up_silu(x, reference.prepare_gate_up(published))
    torch.testing.assert_close(ops.gate_up_silu(x, ops.prepare_gate_up(published)), want)
