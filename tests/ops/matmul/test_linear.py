import pytest
import torch

from ops.interface import Ops
from ops.tree import add_tree
from tests.ops.exact import assert_rounded_once, dtypes


@dtypes
@pytest.mark.parametrize("rows", [0, 1, 5, 33])
def test_linear_adds_the_bias_before_the_one_cast(
    ops: Ops, device: torch.device, dtype: torch.dtype, rows: int
) -> None:
    x, weight, bias = (torch.randn(*shape, device=device).to(dtype) for shape in ((rows, 96), (40, 96), (40,)))
    want = x.double() @ weight.double().T
    prepared = ops.prepare_linear(weight)
    assert_rounded_once(ops.linear(x, prepared, bias), want + bias.double())
    assert_rounded_once(ops.linear(x, prepared, None), want)
    assert ops.linear(x, prepared, None).dtype == dtype


@dtypes
def test_embedding_gives_rows_of_the_prepared_weight(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    weight = torch.randn(40, 96, device=device).to(dtype)
    ids = torch.tensor([39, 0, 7, 7], dtype=torch.int32, device=device)
    got = ops.embedding(ids, ops.prepare_linear(weight), dtype)
    assert torch.equal(got, weight[ids.long()])
    assert got.dtype == dtype


@dtypes
def test_linear_float32_is_not_cast(ops: Ops, device: torch.device, dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 96, device=device).to(dtype), torch.randn(40, 96, device=device).to(dtype)
    got = ops.linear_float32(x, ops.prepare_linear(weight))
    assert got.dtype == torch.float32
    assert_rounded_once(got, x.double() @ weight.double().T)


@dtypes
@pytest.mark.parametrize("num_leaves", [1, 2, 8])
def test_linear_tree_is_the_product_in_float32(
    ops: Ops, device: torch.device, dtype: torch.dtype, num_leaves: int
) -> None:
    x, weight = torch.randn(7, 128, device=device).to(dtype), torch.randn(24, 128, device=device).to(dtype)
    got = ops.linear_tree(x, ops.prepare_tree_linear(weight, num_leaves))
    assert got.dtype == torch.float32
    assert_rounded_once(got, x.double() @ weight.double().T)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_linear_tree_has_the_same_bits_however_many_ranks_share_the_leaves(
    ops: Ops, device: torch.device, ranks: int
) -> None:
    x, weight = torch.randn(7, 512, device=device), torch.randn(24, 512, device=device)
    whole = ops.linear_tree(x, ops.prepare_tree_linear(weight, 8))
    parts = [
        ops.linear_tree(part.contiguous(), ops.prepare_tree_linear(columns.contiguous(), 8 // ranks))
        for part, columns in zip(x.chunk(ranks, 1), weight.chunk(ranks, 1), strict=True)
    ]
    assert torch.equal(add_tree(parts), whole)
    if ranks > 2:
        assert not torch.equal(sum(parts), whole), "these numbers do not tell a tree from a chain"


def test_shapes_that_do_not_fit_are_refused(ops: Ops, device: torch.device) -> None:
    weight = torch.randn(24, 96, device=device)
    with pytest.raises(ValueError, match="3 leaves"):
        ops.prepare_tree_linear(weight, 3)
    with pytest.raises(ValueError, match="64 leaves"):
        ops.prepare_tree_linear(weight, 64)
    with pytest.raises(ValueError, match=r"x has shape \[2, 95\]"):
        ops.linear(torch.randn(2, 95, device=device), ops.prepare_linear(weight), None)
    with pytest.raises(ValueError, match="not contiguous"):
        ops.linear(torch.randn(96, 2, device=device).T, ops.prepare_linear(weight), None)
