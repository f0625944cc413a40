"""Products of codes with inputs of all magnitudes, which some levels make integers of."""

import pytest
import torch
from torch import Tensor

from ops import cpu, reference
from ops.interface import Quantization
from ops.published import PublishedKind, PublishedWeight
from ops.reference.matmul.quantization import quantize

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))

OUT, IN, GROUP = 72, 328, 128


def published(kind: PublishedKind, has_zeros: bool = True, num_out: int = OUT, num_in: int = IN) -> PublishedWeight:
    last = 16 if kind == "int4" else 256
    codes = torch.randint(0, last, (num_out, num_in), dtype=torch.uint8)
    groups = (torch.arange(num_in) // GROUP).int()
    shape = num_out, -(-num_in // GROUP)
    zeros = torch.randint(0, last, shape) if has_zeros else torch.full(shape, last // 2)
    return PublishedWeight(kind, torch.bfloat16, codes, zeros.short(), torch.rand(shape) / 100, groups)


KINDS: list[tuple[PublishedKind, bool]] = [("int4", True), ("int8", True), ("int8", False)]
kinds = pytest.mark.parametrize(("kind", "has_zeros"), KINDS)


def products(x: Tensor, weight: PublishedWeight) -> Tensor:
    return cpu.linear_float32(x, cpu.prepare_linear(weight))


@kinds
@pytest.mark.parametrize("octaves", [0, 6, 40, 100])
def test_errors_are_float32_s(kind: PublishedKind, has_zeros: bool, octaves: int) -> None:
    """As large as a sum in float32 may have: of the largest input times the largest weights."""
    weight = published(kind, has_zeros)
    x = (torch.randn(19, IN) * torch.exp2(torch.randint(-octaves, octaves + 1, (19, IN)).float())).bfloat16()
    numbers = weight.numbers().double()
    largest = x.double().abs().amax(1, keepdim=True) * numbers.abs().sum(1)
    error = (products(x, weight).double() - x.double() @ numbers.T).abs()
    assert (error <= largest * 2**-20).all()


@kinds
def test_zero_points_cost_no_digits(kind: PublishedKind, has_zeros: bool) -> None:
    """Most of what products of inputs of one sign come to is taken off again."""
    weight = published(kind, has_zeros)
    weight.codes.copy_(weight.zeros[:, weight.groups.long()] + torch.randint(-2, 3, weight.codes.shape))
    weight.codes.clamp_(0, 15 if kind == "int4" else 255)
    x = torch.randn(19, IN).abs().bfloat16()
    numbers = weight.numbers().double()
    error = (products(x, weight).double() - x.double() @ numbers.T).abs()
    assert (error <= x.double() @ numbers.abs().T * 0.75 * 2**-21).all()


@kinds
def test_sums_that_float32_has_are_exact(kind: PublishedKind, has_zeros: bool) -> None:
    weight = published(kind, has_zeros)
    weight.scales.fill_(0.5)
    x = torch.randint(-12, 13, (5, IN)).bfloat16()
    want = x.double() @ weight.numbers().double().T
    assert torch.equal(products(x, weight).double(), want)
    assert torch.equal(products(x * 2.0**90, weight).double(), want * 2.0**90)
    assert not products(x * 0, weight).any()


@kinds
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_a_row_s_own(kind: PublishedKind, has_zeros: bool, wrong: float) -> None:
    weight, x = published(kind, has_zeros), torch.randn(19, IN).bfloat16()
    whole = products(x, weight)
    x[7, 200] = wrong
    found = products(x, weight)
    others = torch.arange(19) != 7
    assert torch.equal(found[others], whole[others])
    differs = weight.differences()[:, 200] != 0
    assert not found[7][differs].isfinite().any()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_an_embedding_is_the_head_s_weight(quantization: Quantization) -> None:
    """Rows of it are what the unit vectors' products are."""
    weight = cpu.prepare_embedding(torch.randn(OUT, IN).bfloat16(), quantization)
    rows = cpu.embedding(torch.arange(OUT, dtype=torch.int32), weight, torch.float32)
    assert torch.equal(cpu.linear_float32(torch.eye(IN).bfloat16(), weight), rows.T)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_small_weights_are_stored_as_the_reference_has_them(quantization: Quantization) -> None:
    """Their scales are nearly the smallest normal numbers."""
    weight = torch.randn(OUT, IN).bfloat16() * 2.0**-123
    packed, stored = cpu.prepare_embedding(weight, quantization), quantize(weight, quantization)
    assert torch.equal(cpu.embedding(torch.arange(OUT, dtype=torch.int32), packed, torch.float32), stored)
    assert torch.equal(cpu.linear_float32(torch.eye(IN).bfloat16() * 2.0**100, packed), stored.T * 2.0**100)


@kinds
def test_experts_of_which_some_are_not_quantized(kind: PublishedKind, has_zeros: bool) -> None:
    """The first of them, too, whose inputs take no digits."""
    hidden, inner = 2048, 1024
    experts = [
        (published(kind, has_zeros, 2 * inner, hidden), published(kind, has_zeros, hidden, inner)) for _ in range(2)
    ]
    plain = [(gate_up.numbers().bfloat16(), down.numbers().bfloat16()) for gate_up, down in experts]
    mixed = [plain[0], experts[1]]
    x, ids = torch.randn(64, hidden).bfloat16(), torch.ones(64, 1, dtype=torch.int32)
    packed = cpu.prepare_experts(mixed, 0, 1)
    found = cpu.experts_tree(x, ids, torch.ones(64, 1), packed)
    want = reference.experts_tree(x, ids, torch.ones(64, 1), reference.prepare_experts(mixed, 0, 1))
    torch.testing.assert_close(found, want, rtol=2e-2, atol=2e-2 * want.abs().max().item())
