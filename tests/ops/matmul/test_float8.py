"""fp8: the codes of a row are the same to the bit on every backend and shard, and what they stand
for is what is multiplied.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ops.interface import Ops
from ops.reference.matmul.float8 import decode, encode, rounded
from ops.tree import add_tree
from tests.ops.exact import assert_rounded_once, dtypes

HIDDEN, OUT, LEAVES = 96, 40, 4


@pytest.fixture(autouse=True)
def computes_fp8(ops: Ops, device: torch.device) -> None:
    if "fp8" not in ops.QUANTIZATIONS:
        pytest.skip(f"the {ops.NAME} backend does not compute fp8")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("this GPU does not compute fp8")


def slack(device: torch.device) -> float:
    """Of the largest value. Tensor cores add float8 products with fewer bits than float32 has."""
    return 1e-3 if device.type == "cuda" else 2e-6


def rows_of_all_magnitudes(num_rows: int, num_in: int, device: torch.device) -> Tensor:
    rows = torch.randn(num_rows, num_in, device=device) * 10.0 ** torch.randint(-6, 1, (num_rows, 1), device=device)
    rows[0] = 0.0
    return rows


@dtypes
@pytest.mark.parametrize("num_in", [1, 67, 896])
def test_every_backend_stores_the_same_numbers(ops: Ops, device: torch.device, dtype: torch.dtype, num_in: int) -> None:
    weight = rows_of_all_magnitudes(9, num_in, device).to(dtype)
    ids = torch.arange(9, dtype=torch.int32, device=device)
    got = ops.embedding(ids, ops.prepare_embedding(weight, "fp8"))
    assert torch.equal(got, rounded(weight, 1))
    error = (got - weight.float()).abs()
    peaks = weight.float().abs().amax(1, keepdim=True)
    assert (error <= torch.maximum(weight.float().abs() / 16, peaks / 448 * 2**-9)).all()


def test_what_is_not_finite_stays_so_in_its_leaf_only() -> None:
    rows = torch.randn(2, 8)
    rows[0, 1], rows[1, 6] = torch.nan, -torch.inf
    codes, scales = encode(rows, 2)
    assert decode(codes, scales).isnan().view(2, 2, 4).all(2).tolist() == [[True, False], [False, True]]


@dtypes
@pytest.mark.parametrize("rows", [0, 1, 33])
def test_every_product_is_of_rounded_rows_with_what_is_stored(
    ops: Ops, device: torch.device, dtype: torch.dtype, rows: int
) -> None:
    x, bias = rows_of_all_magnitudes(max(rows, 1), HIDDEN, device)[:rows].to(dtype), torch.randn(OUT, device=device)
    bias = bias.to(dtype)
    weight = torch.randn(OUT, HIDDEN, device=device).to(dtype)
    want = rounded(x, 1).double() @ rounded(weight, 1).double().T
    linear = ops.prepare_linear(weight, "fp8")
    assert_rounded_once(ops.linear(x, linear, bias), want + bias.double(), slack(device))
    assert_rounded_once(ops.linear_float32(x, linear), want, slack(device))
    in_leaves = rounded(x, LEAVES).double() @ rounded(weight, LEAVES).double().T
    tree = ops.prepare_tree_linear(weight, LEAVES, "fp8")
    assert_rounded_once(ops.linear_tree(x, tree), in_leaves, slack(device))
    gate, up = want.chunk(2, 1)
    got = ops.gate_up_silu(x, ops.prepare_gate_up(weight, "fp8"))
    assert_rounded_once(got, torch.nn.functional.silu(gate) * up, slack(device))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("leaf", [64, 7])
def test_shards_are_encoded_as_the_whole_is(ops: Ops, device: torch.device, size: int, leaf: int) -> None:
    weight, x = torch.randn(OUT, 8 * leaf, device=device), torch.randn(5, 8 * leaf, device=device)
    together = ops.linear_tree(x, ops.prepare_tree_linear(weight, 8, "fp8"))
    ranks = zip(x.chunk(size, 1), weight.chunk(size, 1), strict=True)
    partials = [
        ops.linear_tree(part.contiguous(), ops.prepare_tree_linear(shard.contiguous(), 8 // size, "fp8"))
        for part, shard in ranks
    ]
    assert torch.equal(add_tree(partials), together)


def test_experts_round_their_rows_too(ops: Ops, device: torch.device) -> None:
    experts = [(torch.randn(2 * 32, 48, device=device), torch.randn(48, 32, device=device)) for _ in range(4)]
    x, logits = torch.randn(9, 48, device=device), torch.randn(9, 4, device=device)
    ids, weights = ops.route(logits, 2, True)
    got = ops.experts_tree(x, ids, weights, ops.prepare_experts(experts, 0, 4, "fp8"))
    want = torch.zeros_like(got)
    for number, (gate_up, down) in enumerate(experts):
        inner = ops.gate_up_silu(x, ops.prepare_gate_up(gate_up, "fp8"))
        output = ops.linear_float32(inner, ops.prepare_linear(down, "fp8"))
        want += torch.where(ids == number, weights, 0.0).sum(1, keepdim=True) * output
    if device.type == "cuda":  # whose float8 products keep some 14 bits: what is rounded next may differ by a step
        assert float((got - want).norm() / want.norm()) < 1e-3
    else:
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-3)


def test_a_row_of_nan_spoils_no_other(ops: Ops, device: torch.device) -> None:
    weight, x = torch.randn(OUT, HIDDEN, device=device).bfloat16(), torch.randn(5, HIDDEN, device=device).bfloat16()
    products: list[Callable[[Tensor], Tensor]] = [
        lambda rows: ops.linear(rows, ops.prepare_linear(weight, "fp8"), None),
        lambda rows: ops.linear_tree(rows, ops.prepare_tree_linear(weight, LEAVES, "fp8")),
    ]
    for product in products:
        spoilt, clean = x.clone(), product(x)
        spoilt[3, 7] = torch.nan
        got = product(spoilt)
        assert got[3].isnan().all()
        assert torch.equal(got[torch.arange(5) != 3], clean[torch.arange(5) != 3])
