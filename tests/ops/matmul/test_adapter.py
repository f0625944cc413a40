"""Low-rank adapters of linears, of different rows in one call."""

from collections.abc import Iterator

import pytest
import torch

from ops.interface import Adapted, AdapterPart, Ops
from ops.published import PublishedKind
from tests.ops.exact import dtypes
from tests.ops.matmul.test_published import multiplied
from tests.ops.matmul.test_published import weight as published_weight

HIDDEN = 96
RUNS = torch.tensor([(1, 3, 0), (3, 4, 1), (5, 7, 0), (7, 30, 2)], dtype=torch.int32)  # others have none


@pytest.fixture(autouse=True)
def on_the_device(device: torch.device) -> Iterator[None]:
    with device:
        yield


def part(rank: int, outputs: slice, dtype: torch.dtype, num_in: int = HIDDEN, scale: float = 0.7) -> AdapterPart:
    down, up = torch.randn(rank, num_in) / num_in**0.5, torch.randn(outputs.stop - outputs.start, rank)
    return AdapterPart(down.to(dtype), up.to(dtype), outputs, scale)


def adapters(sizes: tuple[int, ...], dtype: torch.dtype, num_in: int = HIDDEN) -> list[list[AdapterPart]]:
    """Two, of the parts that lie one after the other in a weight: one of all, one of the last."""
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    slices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    whole = [part(3 + 5 * index, outputs, dtype, num_in) for index, outputs in enumerate(slices)]
    return [whole, [part(8, slices[-1], dtype, num_in, scale=2.0)]]


def updates(x: torch.Tensor, parts: list[list[AdapterPart]], num_out: int, num_leaves: int = 1) -> torch.Tensor:
    """[T, num_out] float64."""
    total = torch.zeros(x.shape[0], num_out, dtype=torch.float64)
    length = x.shape[1] // num_leaves
    for first, end, slot in RUNS.tolist():
        for each in parts[slot] if slot < len(parts) else []:
            for leaf in range(num_leaves):
                inputs = slice(leaf * length, (leaf + 1) * length)
                inner = each.scale * (x[first:end, inputs].double() @ each.down[:, inputs].double().T)
                total[first:end, each.outputs] += inner.to(x.dtype).double() @ each.up.double().T
    return total


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    # The inner products are cast: one that lies between two numbers may become either.
    slack = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), want, rtol=slack, atol=slack)


@dtypes
@pytest.mark.parametrize("sizes", [(40,), (48, 24, 24)])
@pytest.mark.parametrize("num_in", [HIDDEN, 97])
def test_rows_get_what_their_adapter_adds(ops: Ops, dtype: torch.dtype, sizes: tuple[int, ...], num_in: int) -> None:
    num_out = sum(sizes)
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((33, num_in), (num_out, num_in), (num_out,)))
    prepared, parts = ops.prepare_linear(weight), adapters(sizes, dtype, num_in)
    adapted = Adapted(RUNS, [*(ops.make_adapter(each, prepared) for each in parts), None])
    got = ops.adapted_linear(x, prepared, bias, adapted)
    close(got, x.double() @ weight.double().T + bias.double() + updates(x, parts, num_out), dtype)
    assert got.dtype == dtype
    if ops.EXACT:
        plain = ops.linear(x, prepared, bias)
        assert torch.equal(got[[0, 4, *range(7, 33)]], plain[[0, 4, *range(7, 33)]]), "rows without an adapter"
        assert not torch.equal(got[1:4], plain[1:4])


def test_no_adapter_of_a_step_need_change_a_weight(ops: Ops) -> None:
    x, prepared = torch.randn(33, HIDDEN), ops.prepare_linear(torch.randn(40, HIDDEN))
    got = ops.adapted_linear(x, prepared, None, Adapted(RUNS, [None, None, None]))
    torch.testing.assert_close(got, ops.linear(x, prepared, None))


@pytest.mark.parametrize("num_out", [40, 200])
def test_neighbours_change_no_bit(ops: Ops, num_out: int) -> None:
    if not ops.EXACT:
        pytest.skip(f"the {ops.NAME} backend is not exact")
    dtype = torch.bfloat16
    x, prepared = torch.randn(33, HIDDEN).to(dtype), ops.prepare_tree_linear(torch.randn(num_out, HIDDEN).to(dtype), 2)
    made = [ops.make_adapter(each, prepared) for each in adapters((num_out,), dtype)]
    whole = ops.adapted_linear_tree(x, prepared, Adapted(RUNS, [*made, None]))
    for first, end, slot in RUNS.tolist()[:3]:
        alone = Adapted(torch.tensor([(0, end - first, 0)], dtype=torch.int32, device="cpu"), [made[slot]])
        assert torch.equal(ops.adapted_linear_tree(x[first:end].contiguous(), prepared, alone), whole[first:end])
    plain = ops.linear_tree(x, prepared)
    assert torch.equal(whole[7:], plain[7:]) and not torch.equal(whole[1:4], plain[1:4])


@dtypes
def test_gate_and_up_have_their_own_adapters(ops: Ops, dtype: torch.dtype) -> None:
    x, weight = torch.randn(33, HIDDEN).to(dtype), torch.randn(80, HIDDEN).to(dtype)
    prepared, parts = ops.prepare_gate_up(weight), adapters((40, 40), dtype)
    adapted = Adapted(RUNS, [*(ops.make_adapter(each, prepared) for each in parts), None])
    gate, up = (x.double() @ weight.double().T + updates(x, parts, 80)).chunk(2, 1)
    got = ops.adapted_gate_up_silu(x, prepared, adapted)
    close(got, torch.nn.functional.silu(gate) * up, dtype)
    if ops.EXACT:
        assert torch.equal(got[7:], ops.gate_up_silu(x, prepared)[7:]), "rows without an adapter"


@dtypes
@pytest.mark.parametrize("num_leaves", [1, 4])
def test_leaves_add_up_to_the_whole(ops: Ops, dtype: torch.dtype, num_leaves: int) -> None:
    x, weight = torch.randn(33, HIDDEN).to(dtype), torch.randn(40, HIDDEN).to(dtype)
    prepared, parts = ops.prepare_tree_linear(weight, num_leaves), adapters((40,), dtype)
    adapted = Adapted(RUNS, [*(ops.make_adapter(each, prepared) for each in parts), None])
    got = ops.adapted_linear_tree(x, prepared, adapted)
    assert got.dtype == torch.float32
    close(got, x.double() @ weight.double().T + updates(x, parts, 40, num_leaves), dtype)


def test_parts_that_do_not_fit_are_refused(ops: Ops) -> None:
    prepared = ops.prepare_linear(torch.randn(40, HIDDEN))
    with pytest.raises(ValueError, match=r"down has shape \[4, 95\]"):
        ops.make_adapter([part(4, slice(0, 40), torch.float32, num_in=95)], prepared)
    with pytest.raises(ValueError, match=r"up has shape \[48, 4\], not \[40, 4\]"):
        ops.make_adapter([part(4, slice(0, 48), torch.float32)], prepared)
    with pytest.raises(ValueError, match="one part or more"):
        ops.make_adapter([], prepared)


@pytest.mark.parametrize("kind", ["int4", "fp8"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_published_weights_have_adapters_too(
    ops: Ops, device: torch.device, kind: PublishedKind, shuffled: bool
) -> None:
    dtype, num_in = torch.bfloat16, 4 * HIDDEN
    published = published_weight(kind, 40, num_in, dtype=dtype, device=device, shuffled=shuffled, size=64)
    x, prepared = torch.randn(33, num_in).to(dtype), ops.prepare_tree_linear(published, 4)
    parts = adapters((40,), dtype, num_in)
    adapted = Adapted(RUNS, [*(ops.make_adapter(each, prepared) for each in parts), None])
    got = ops.adapted_linear_tree(x, prepared, adapted)
    close(got, x.double() @ multiplied(ops, published).T + updates(x, parts, 40, 4), dtype)
    if ops.EXACT:
        assert torch.equal(got[7:], ops.linear_tree(x, prepared)[7:]), "rows without an adapter"
