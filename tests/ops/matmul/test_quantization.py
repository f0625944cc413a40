"""Quantized weights: what the codes stand for is the same to the bit on every backend and shard,
and is what is multiplied.
"""

import pytest
import torch
from torch import Tensor

from ops.interface import Ops, Quantization
from ops.reference.matmul.quantization import GROUP, INT8_SPAN, quantize
from ops.tree import add_tree
from tests.ops.exact import assert_rounded_once

quantizations = pytest.mark.parametrize("quantization", ["int8", "int4"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
LEVELS = {"int8": 127, "int4": 8}
SHARED = {"int8": INT8_SPAN, "int4": GROUP}  # inputs with one scale


def stored(ops: Ops, weight: Tensor, quantization: Quantization) -> Tensor:
    """What a backend's codes stand for, float32."""
    ids = torch.arange(len(weight), dtype=torch.int32, device=weight.device)
    return ops.embedding(ids, ops.prepare_embedding(weight, quantization))


def multiplied(ops: Ops, weight: Tensor, quantization: Quantization, num_leaves: int = 1) -> Tensor:
    """The numbers that a backend multiplies, float64: GPUs round them to the weight's dtype."""
    numbers = quantize(weight, quantization, num_leaves)
    return (numbers.to(weight.dtype) if ops.NAME.startswith("triton") else numbers).double()


def hard_weight(num_rows: int, num_in: int, device: torch.device) -> Tensor:
    """Rows of all magnitudes, among them zeros, and single large numbers of either sign."""
    weight = torch.randn(num_rows, num_in, device=device) * 10.0 ** torch.randint(-6, 4, (num_rows, 1), device=device)
    weight[0] = 0.0
    weight[1::3, 0] *= 50.0
    return weight


@quantizations
@dtypes
@pytest.mark.parametrize("num_in", [1, 3, 64, 66, 200, 896, 1100])
def test_every_backend_stores_the_same_numbers(
    ops: Ops, device: torch.device, dtype: torch.dtype, num_in: int, quantization: Quantization
) -> None:
    weight = hard_weight(67, num_in, device).to(dtype)
    assert torch.equal(stored(ops, weight, quantization), quantize(weight, quantization))


@quantizations
def test_a_number_is_off_by_half_a_step_at_most_unless_it_is_cut_off(quantization: Quantization) -> None:
    shared = SHARED[quantization]
    weight = hard_weight(64, 2 * shared, torch.device("cpu"))
    got = quantize(weight, quantization)
    groups, kept = weight.view(-1, shared).double(), got.view(-1, shared).double()
    for group, values in zip(groups, kept, strict=True):
        distinct = values.unique()
        assert len(distinct) <= 2 * LEVELS[quantization]
        if quantization == "int8":
            step = group.abs().max() / 127 * 1.004
            assert ((group - values).abs() <= step / 2 + 1e-40).all()


def test_int4_takes_the_best_of_its_scales() -> None:
    weight = hard_weight(64, 2 * GROUP, torch.device("cpu"))
    groups = weight.view(-1, GROUP).double()
    got = ((quantize(weight, "int4").view(-1, GROUP) - groups) ** 2).sum(1)
    peak = groups.gather(1, groups.abs().argmax(1, keepdim=True))
    for divisor in (7.0, 8.0, 9.5, 10.5):
        scale = (-peak / divisor).bfloat16().double()
        codes = torch.where(scale == 0, 0.0, groups / scale).round().clamp(-8, 7)
        assert (got <= ((codes * scale - groups) ** 2).sum(1) * 1.0001).all()


def test_int4_loses_much_less_than_by_rounding_to_the_largest_magnitude() -> None:
    groups = torch.randn(256, GROUP)
    steps = groups.abs().amax(1, keepdim=True) / 7
    rounded = (groups / steps).round() * steps
    assert (quantize(groups, "int4") - groups).norm() < 0.87 * (rounded - groups).norm()


@quantizations
def test_tiny_huge_and_broken_groups(ops: Ops, device: torch.device, quantization: Quantization) -> None:
    shared = SHARED[quantization]
    weight = torch.randn(5, 3 * shared, device=device)
    weight[0, :shared] *= 1e-41
    weight[1, :shared] *= 1e37
    weight[2, 3] = torch.nan
    weight[3, shared + 5] = torch.inf
    got = stored(ops, weight, quantization)
    assert (got[0, :shared] == 0).all() and (got[0, shared:] != 0).any()
    assert (got[1].double() - weight[1]).norm() < 0.3 * weight[1].double().norm()
    assert got[2, :shared].isnan().all() and got[2, shared:].isfinite().all()
    assert got[3, shared : 2 * shared].isnan().all() and got[3, :shared].isfinite().all()


@quantizations
@pytest.mark.parametrize("leaf", [12, 64, 96, 448, 67])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_shards_are_quantized_as_the_whole_is(
    ops: Ops, device: torch.device, size: int, leaf: int, quantization: Quantization
) -> None:
    weight = hard_weight(37, 8 * leaf, device)
    whole = quantize(weight, quantization, num_leaves=8)
    columns = [quantize(part.contiguous(), quantization, num_leaves=8 // size) for part in weight.chunk(size, 1)]
    assert torch.equal(torch.cat(columns, 1), whole)
    rows = [stored(ops, part, quantization) for part in weight.split(9)]
    assert torch.equal(torch.cat(rows), stored(ops, weight, quantization))
    x = torch.randn(5, 8 * leaf, device=device)
    together = ops.linear_tree(x, ops.prepare_tree_linear(weight, 8, quantization))
    ranks = zip(x.chunk(size, 1), weight.chunk(size, 1), strict=True)
    partials = [
        ops.linear_tree(part.contiguous(), ops.prepare_tree_linear(shard.contiguous(), 8 // size, quantization))
        for part, shard in ranks
    ]
    assert torch.equal(add_tree(partials), together)


@quantizations
@dtypes
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 33])
def test_every_product_is_with_what_is_stored(
    ops: Ops, device: torch.device, dtype: torch.dtype, rows: int, quantization: Quantization
) -> None:
    x, bias = torch.randn(rows, 208, device=device).to(dtype), torch.randn(40, device=device).to(dtype)
    weight = torch.randn(40, 208, device=device).to(dtype)
    want = x.double() @ multiplied(ops, weight, quantization).T
    linear = ops.prepare_linear(weight, quantization)
    assert_rounded_once(ops.linear(x, linear, bias), want + bias.double())
    assert_rounded_once(ops.linear_float32(x, linear), want)
    assert_rounded_once(ops.linear_float32(x, ops.prepare_embedding(weight, quantization)), want)
    in_leaves = x.double() @ multiplied(ops, weight, quantization, num_leaves=4).T
    assert_rounded_once(ops.linear_tree(x, ops.prepare_tree_linear(weight, 4, quantization)), in_leaves)
    gate, up = want.chunk(2, 1)
    got = ops.gate_up_silu(x, ops.prepare_gate_up(weight, quantization))
    assert_rounded_once(got, torch.nn.functional.silu(gate) * up)


@quantizations
def test_experts_are_those_of_what_is_stored(ops: Ops, device: torch.device, quantization: Quantization) -> None:
    experts = [(torch.randn(2 * 96, 72, device=device), torch.randn(72, 96, device=device)) for _ in range(4)]
    kept = [(quantize(gate_up, quantization), quantize(down, quantization)) for gate_up, down in experts]
    x, logits = torch.randn(9, 72, device=device), torch.randn(9, 4, device=device)
    routed = ops.route(logits, 2, True)
    got = ops.experts_tree(x, *routed, ops.prepare_experts(experts, 0, 4, quantization))
    torch.testing.assert_close(got, ops.experts_tree(x, *routed, ops.prepare_experts(kept, 0, 4)), rtol=1e-5, atol=1e-3)
