"""bfloat16 weights in twelve bits: what is computed with them has the bits of what plain ones give,
whatever they hold.
"""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ops import cpu
from ops.cpu.matmul.packed import PackedWeight

LEVELS = ("amx", "avx512_bf16")
pytestmark = [
    pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason())),
    pytest.mark.skipif(cpu.unavailable_reason() is None and cpu.ISA not in LEVELS, reason="wants AVX512-BF16"),
]
COMPACT = 4  # Codes of src/quantized.h
linear_module = importlib.import_module("ops.cpu.matmul.linear")


def plain(prepare: Callable[..., PackedWeight], *arguments: object) -> PackedWeight:
    """The weight as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_module, "_COMPACT", 0)
        return prepare(*arguments)


def bits(x: Tensor) -> Tensor:
    """So that NaN equals itself."""
    return x.view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


def with_others(rows: int, columns: int) -> Tensor:
    """Weights of which some have exponents that hardly any has: first ones and last ones, alone and
    next to each other.
    """
    weight = torch.randn(rows, columns)
    values = [0.0, -0.0, 1e30, -1e-30, 1e-40, -3e38, torch.inf, torch.nan]
    last = rows * columns - 1
    places = {0, 1, min(2, last), last, *torch.randint(rows * columns, (6,)).tolist()}
    for number, place in enumerate(sorted(places)):
        weight.view(-1)[place] = values[number % len(values)]
    return weight.bfloat16()


@pytest.mark.parametrize("make", [torch.randn, with_others], ids=["usual", "others"])
@pytest.mark.parametrize("size", [(1, 24), (31, 26), (32, 32), (33, 34), (65, 130), (7, 1999), (70, 896)], ids=str)
def test_odd_sizes_have_the_bits_of_plain_weights(size: tuple[int, int], make: Callable[[int, int], Tensor]) -> None:
    weight, bias = make(*size).bfloat16(), torch.randn(size[0]).bfloat16()
    packed, expected = cpu.prepare_linear(weight), plain(cpu.prepare_linear, weight)
    assert (packed.description.codes, expected.description.codes) == (COMPACT, 0)
    for rows in (1, 2, 4, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 64, 70):
        x = torch.randn(rows, size[1]).bfloat16()
        assert torch.equal(bits(cpu.linear_float32(x, packed)), bits(cpu.linear_float32(x, expected))), rows
        assert torch.equal(bits(cpu.linear(x, packed, bias)), bits(cpu.linear(x, expected, bias))), rows


@pytest.mark.parametrize("make", [torch.randn, with_others], ids=["usual", "others"])
@pytest.mark.parametrize("num_leaves", [1, 2, 4])
def test_leaves_and_gates_have_the_bits_of_plain_weights(num_leaves: int, make: Callable[[int, int], Tensor]) -> None:
    weight = make(66, 80).bfloat16()
    tree, gated = cpu.prepare_tree_linear(weight, num_leaves), cpu.prepare_gate_up(weight)
    plain_tree, plain_gated = plain(cpu.prepare_tree_linear, weight, num_leaves), plain(cpu.prepare_gate_up, weight)
    assert tree.description.codes == gated.description.codes == COMPACT
    for rows in (1, 8, 40):
        x = torch.randn(rows, 80).bfloat16()
        assert torch.equal(bits(cpu.linear_tree(x, tree)), bits(cpu.linear_tree(x, plain_tree)))
        assert torch.equal(bits(cpu.gate_up_silu(x, gated)), bits(cpu.gate_up_silu(x, plain_gated)))


def test_embeddings_are_the_weights_themselves() -> None:
    weight = with_others(100, 72)
    packed = cpu.prepare_embedding(weight)
    assert packed.description.codes == COMPACT
    ids = torch.randperm(100).int()
    assert torch.equal(bits(cpu.embedding(ids, packed)), bits(weight[ids.long()].float()))


def test_twelve_bits_a_weight() -> None:
    weight = torch.randn(9728, 896).bfloat16()
    assert cpu.prepare_linear(weight).data.numel() < 12.25 / 16 * weight.nbytes


def test_whatever_the_demo_has_learned_fits() -> None:
    tensors = load_file(Path(__file__).parents[4] / "configs" / "demo" / "model.safetensors")
    matrices = {name: tensor.bfloat16() for name, tensor in tensors.items() if tensor.dim() == 2}
    assert len(matrices) == 29
    plain_ones = [name for name, matrix in matrices.items() if cpu.prepare_linear(matrix).description.codes != COMPACT]
    assert plain_ones == []


def test_a_weight_of_all_kinds_of_exponents_stays_plain_and_takes_no_more_memory() -> None:
    weight = torch.randint(-(1 << 15), 1 << 15, (640, 896), dtype=torch.int16).view(torch.bfloat16)
    weight[weight.isnan()] = 1.0
    first, second = cpu.prepare_linear(weight), cpu.prepare_embedding(weight)
    assert first.description.codes == second.description.codes == 0
    assert first.data.numel() == weight.nbytes
    assert 0 <= second.data.data_ptr() - first.data.data_ptr() < weight.nbytes + 64 or (
        second.data.untyped_storage().data_ptr() != first.data.untyped_storage().data_ptr()
    ), "nothing between them, unless another piece of memory begins"
    ids = torch.tensor([3, 639], dtype=torch.int32)
    assert torch.equal(bits(cpu.embedding(ids, second)), bits(weight[ids.long()].float()))


def test_float32_is_as_it_was() -> None:
    assert cpu.prepare_linear(torch.randn(32, 32)).description.codes == 0
