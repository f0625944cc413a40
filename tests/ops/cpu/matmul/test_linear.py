import gc
import weakref

import pytest
import torch

from ops import cpu
from ops.interface import Quantization
from ops.reference.matmul.quantization import quantize

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("size", [(1, 1), (31, 2), (32, 33), (65, 130), (7, 1999)])
@pytest.mark.parametrize("rows", [1, 2, 4, 14, 15, 29, 64, 70])
def test_odd_sizes_against_float64(
    dtype: torch.dtype, size: tuple[int, int], rows: int, quantization: Quantization | None
) -> None:
    weight, bias, x = torch.randn(size).to(dtype), torch.randn(size[0]).to(dtype), torch.randn(rows, size[1]).to(dtype)
    stored = quantize(weight, quantization).double()
    want = x.double() @ stored.T
    limit = 4e-7 * (x.double().abs() @ stored.abs().T)
    packed = cpu.prepare_linear(weight, quantization)
    assert ((cpu.linear_float32(x, packed) - want).abs() <= limit).all()
    with_bias = cpu.linear(x, packed, bias)
    rounding = torch.finfo(dtype).eps * (want + bias.double()).abs()
    assert ((with_bias - (want + bias.double())).abs() <= limit + rounding + 1e-6).all()


def test_the_weight_that_was_packed_can_be_freed_and_changed() -> None:
    weight, x = torch.randn(40, 64), torch.randn(3, 64)
    packed = cpu.prepare_linear(weight)
    before = cpu.linear_float32(x, packed)
    weight.zero_()
    assert torch.equal(cpu.linear_float32(x, packed), before)
    freed = weakref.ref(weight)
    del weight
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(1, 1), (100, 33), (61, 300)])
def test_embedding_gives_the_rows_that_were_packed(dtype: torch.dtype, size: tuple[int, int]) -> None:
    weight, ids = torch.randn(size).to(dtype), torch.randint(0, size[0], (40,), dtype=torch.int32)
    packed = cpu.prepare_linear(weight)
    assert torch.equal(cpu.embedding(ids, packed), weight[ids.long()].float())
    assert cpu.embedding(ids[:0], packed).shape == (0, size[1])
    with pytest.raises(ValueError, match=rf"ids\[3\] is {size[0]}; the weight has {size[0]} rows"):
        cpu.embedding(ids.index_fill(0, torch.tensor([3]), size[0]), packed)


@pytest.mark.parametrize(("quantization", "bits"), [(None, 32), ("int8", 8 + 16 / 64), ("int4", 4 + 16 / 64)])
def test_packed_weights_take_no_more_than_whole_panels(quantization: Quantization | None, bits: float) -> None:
    for rows, width in [(1152, 896), (896, 4864), (151_936, 64)]:
        weight = torch.zeros(rows, width, dtype=torch.bfloat16 if quantization else torch.float32)
        assert cpu.prepare_linear(weight, quantization).data.numel() == rows * width * bits / 8


def test_a_weight_is_for_its_own_op() -> None:
    x, weight = torch.randn(2, 8), torch.randn(4, 8)
    with pytest.raises(ValueError, match="gate_up_silu"):
        cpu.gate_up_silu(x, cpu.prepare_linear(weight))
    with pytest.raises(ValueError, match="gate_up_silu"):
        cpu.linear(x, cpu.prepare_gate_up(weight), None)


def test_what_cannot_be_computed_is_refused() -> None:
    packed = cpu.prepare_linear(torch.randn(4, 8))
    with pytest.raises(ValueError, match=r"x is torch.bfloat16, not torch.float32"):
        cpu.linear(torch.randn(2, 8).bfloat16(), packed, None)
    with pytest.raises(ValueError, match=r"x has shape \[2, 9\], not \[2, 8\]"):
        cpu.linear(torch.randn(2, 9), packed, None)
    with pytest.raises(ValueError, match="x is not contiguous"):
        cpu.linear(torch.randn(2, 16)[:, ::2], packed, None)
    with pytest.raises(ValueError, match=r"bias has shape \[5\]"):
        cpu.linear(torch.randn(2, 8), packed, torch.randn(5))
    with pytest.raises(ValueError, match="8 inputs cannot be cut into 3 leaves"):
        cpu.prepare_tree_linear(torch.randn(4, 8), 3)
    with pytest.raises(ValueError, match=r"not in torch.float16"):
        cpu.prepare_linear(torch.randn(4, 8).half())
