import pytest
import torch
from torch import Tensor

from ops.interface import Ops
from tests.ops.exact import assert_rounded_once, dtypes

EPS = 1e-6


def norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.square().mean(1, keepdim=True) + EPS).sqrt() * weight.double()


@dtypes
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_rms_norm(ops: Ops, device: torch.device, dtype: torch.dtype, rows: int) -> None:
    x, weight = (torch.randn(rows, 96, device=device) * 30).to(dtype), torch.randn(96, device=device).to(dtype)
    assert_rounded_once(ops.rms_norm(x, weight, EPS), norm(x, weight))
    assert ops.rms_norm(torch.zeros_like(x), weight, EPS).eq(0).all()


@dtypes
def test_add_rms_norm_is_add_then_rms_norm_to_the_bit(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    residual, weight = torch.randn(9, 96, device=device).to(dtype), torch.randn(96, device=device).to(dtype)
    update = torch.randn(9, 96, device=device)
    want = (residual.double() + update.double()).to(dtype)
    fused, apart = residual.clone(), residual.clone()
    got = ops.add_rms_norm(update, fused, weight, EPS)
    ops.add(update, apart)
    assert_rounded_once(fused, residual.double() + update.double())
    assert torch.equal(fused, apart)
    assert torch.equal(got, ops.rms_norm(apart, weight, EPS))
    assert torch.equal(fused, want)


@dtypes
@pytest.mark.parametrize("num_leaves", [1, 2, 4, 8])
def test_leaves_are_added_as_their_tree_would_be(
    ops: Ops, device: torch.device, dtype: torch.dtype, num_leaves: int
) -> None:
    x, weight = (torch.randn(*sizes, device=device).to(dtype) for sizes in ((9, 64), (96, 64)))
    residual, norm_weight = torch.randn(9, 96, device=device).to(dtype), torch.randn(96, device=device).to(dtype)
    tree = ops.prepare_tree_linear(weight, num_leaves)
    results = []
    for update in (ops.linear_leaves(x, tree), ops.linear_tree(x, tree)):
        normed, added = residual.clone(), residual.clone()
        results.append((ops.add_rms_norm(update, normed, norm_weight, EPS), normed, added))
        ops.add(update, added)
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)
    assert torch.equal(results[0][1], results[0][2])


def test_an_update_that_is_not_float32_is_refused(ops: Ops, device: torch.device) -> None:
    residual = torch.randn(9, 96, device=device)
    with pytest.raises(ValueError, match="update is torch"):
        ops.add(residual.bfloat16(), residual)
