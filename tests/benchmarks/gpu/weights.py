"""Products with quantized weights, and experts: what is measured of them."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import silu

from ops import reference
from ops.interface import Ops, Quantization
from ops.reference.float8 import rounded
from ops.reference.quantization import quantize
from tests.benchmarks.gpu.case import Case, Sizes, has_float8

BYTES = {"int8": 1 + 2 / 64, "int4": 1 / 2 + 2 / 64, "fp8": 1}  # of a weight
NUM_CHECKED = 64  # rows


def quantized_cases(ops: Ops, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[list[Case]]:
    hidden, width = sizes.hidden, sizes.width
    for quantization in ops.QUANTIZATIONS:
        if quantization == "fp8" and not has_float8(device):
            continue
        for rows in (1, sizes.sequences, sizes.prompt):
            x = torch.randn(rows, hidden, device=device).to(dtype)
            weights = [torch.randn(hidden, hidden, device=device).to(dtype) for _ in range(4)]
            yield [_linear(ops, x, weight, quantization) for weight in weights]
            yield [_gate_up(ops, x, torch.randn(2 * width, hidden, device=device).to(dtype), quantization)]


def experts_cases(ops: Ops, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[list[Case]]:
    hidden, inner, count = sizes.hidden, sizes.expert_width, sizes.experts
    pairs = [
        (
            torch.randn(2 * inner, hidden, device=device).to(dtype) * hidden**-0.5,
            torch.randn(hidden, inner, device=device).to(dtype),
        )
        for _ in range(count)
    ]
    experts = ops.prepare_experts(pairs, 0, 4)
    for rows in (1, sizes.sequences, sizes.prompt):
        x = torch.randn(rows, hidden, device=device).to(dtype)
        ids, shares = ops.route(torch.randn(rows, count, device=device), sizes.chosen, True)
        yield [_experts(ops, x, ids, shares, experts, pairs)]


def _linear(ops: Ops, x: Tensor, weight: Tensor, quantization: Quantization) -> Case:
    prepared = ops.prepare_linear(weight, quantization)
    return Case(
        f"linear, {x.shape[0]} rows, {quantization}",
        lambda: ops.linear(x, prepared, None),
        lambda: _product(x, weight, quantization),
        _num_bytes(x, weight, quantization) + x.dtype.itemsize * x.shape[0] * weight.shape[0],
        _num_operations(x, weight, quantization),
    )


def _gate_up(ops: Ops, x: Tensor, weight: Tensor, quantization: Quantization) -> Case:
    prepared = ops.prepare_gate_up(weight, quantization)

    def want() -> Tensor:
        gate, up = _product(x, weight, quantization).chunk(2, dim=1)
        return silu(gate) * up

    return Case(
        f"gate_up_silu, {x.shape[0]} rows, {quantization}",
        lambda: ops.gate_up_silu(x, prepared),
        want,
        _num_bytes(x, weight, quantization) + x.dtype.itemsize * x.shape[0] * weight.shape[0] // 2,
        _num_operations(x, weight, quantization),
    )


def _experts(
    ops: Ops, x: Tensor, ids: Tensor, shares: Tensor, experts: object, pairs: list[tuple[Tensor, Tensor]]
) -> Case:
    size = sum(weight.numel() for weight in pairs[0])
    num_read = len(ids.unique())  # experts that any row goes to

    def want() -> Tensor:
        kept = reference.prepare_experts(pairs, 0, 4)
        checked = slice(NUM_CHECKED)
        return reference.experts_tree(x[checked], ids[checked], shares[checked], kept)

    return Case(
        f"experts, {x.shape[0]} rows, {ids.shape[1]} of {len(pairs)}",
        lambda: ops.experts_tree(x, ids, shares, experts),
        want,
        x.dtype.itemsize * (num_read * size + x.numel()) + 4 * x.numel(),
        2 * ids.numel() * size,
    )


def _product(x: Tensor, weight: Tensor, quantization: Quantization) -> Tensor:
    rows = x[:NUM_CHECKED]
    numbers = rounded(rows, 1) if quantization == "fp8" else rows
    return numbers.double() @ quantize(weight, quantization).double().T


def _num_bytes(x: Tensor, weight: Tensor, quantization: Quantization) -> int:
    return x.dtype.itemsize * x.numel() + int(BYTES[quantization] * weight.numel())


def _num_operations(x: Tensor, weight: Tensor, quantization: Quantization) -> int:
    """As bfloat16 ones, of which the tensor cores do half as many a second as of float8."""
    return (1 if quantization == "fp8" else 2) * x.shape[0] * weight.numel()
