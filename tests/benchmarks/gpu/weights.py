"""Products with quantized weights, and experts: what is measured of them."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import silu

from ops.interface import Ops, Quantization
from ops.reference.matmul.float8 import rounded
from ops.reference.matmul.quantization import quantize
from tests.benchmarks.gpu.case import Case, Make, Sizes, copies_beyond_cache, has_float8

BYTES = {"int8": 1 + 4 / 64, "int4": 1 / 2 + 4 / 64, "fp8": 1}  # of a weight
NUM_CHECKED = 64  # rows


def quantized_cases(ops: Ops, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[Make]:
    hidden, width = sizes.hidden, sizes.width
    for quantization in ops.QUANTIZATIONS:
        if quantization == "fp8" and not has_float8(device):
            continue
        for rows in (1, sizes.sequences, sizes.prompt):
            x = torch.randn(rows, hidden, device=device).to(dtype)
            copies = copies_beyond_cache((hidden, hidden), rows, device)
            weights = [torch.randn(hidden, hidden, device=device).to(dtype) for _ in range(copies)]
            yield partial(_linears, ops, x, weights, quantization)
            gated = torch.randn(2 * width, hidden, device=device).to(dtype)
            yield partial(_gate_up, ops, x, gated, quantization)


def experts_cases(ops: Ops, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[Make]:
    hidden, inner, count = sizes.hidden, sizes.expert_width, sizes.experts
    pairs = [
        (
            torch.randn(2 * inner, hidden, device=device).to(dtype) * hidden**-0.5,
            torch.randn(hidden, inner, device=device).to(dtype),
        )
        for _ in range(count)
    ]
    for rows in (1, sizes.sequences, sizes.prompt):
        x = torch.randn(rows, hidden, device=device).to(dtype)
        yield partial(_experts, ops, x, torch.randn(rows, count, device=device), sizes.chosen, pairs)


def _linears(ops: Ops, x: Tensor, weights: list[Tensor], quantization: Quantization) -> list[Case]:
    return [_linear(ops, x, weight, quantization) for weight in weights]


def _linear(ops: Ops, x: Tensor, weight: Tensor, quantization: Quantization) -> Case:
    prepared = ops.prepare_linear(weight, quantization)
    return Case(
        f"linear, {x.shape[0]} rows, {quantization}",
        lambda: ops.linear(x, prepared, None),
        lambda: _product(x, weight, quantization),
        _num_bytes(x, weight, quantization) + x.dtype.itemsize * x.shape[0] * weight.shape[0],
        _num_operations(x, weight, quantization),
    )


def _gate_up(ops: Ops, x: Tensor, weight: Tensor, quantization: Quantization) -> list[Case]:
    prepared = ops.prepare_gate_up(weight, quantization)

    def want() -> Tensor:
        gate, up = _product(x, weight, quantization).chunk(2, dim=1)
        return silu(gate) * up

    name = f"gate_up_silu, {x.shape[0]} rows, {quantization}"
    num_bytes = _num_bytes(x, weight, quantization) + x.dtype.itemsize * x.shape[0] * weight.shape[0] // 2
    return [
        Case(name, lambda: ops.gate_up_silu(x, prepared), want, num_bytes, _num_operations(x, weight, quantization))
    ]


def _experts(ops: Ops, x: Tensor, logits: Tensor, num_chosen: int, pairs: list[tuple[Tensor, Tensor]]) -> list[Case]:
    ids, shares = ops.route(logits, num_chosen, True)
    experts = ops.prepare_experts(pairs, 0, 4)
    size = sum(weight.numel() for weight in pairs[0])
    num_read = len(ids.unique())  # experts that any row goes to

    def want() -> Tensor:
        total = torch.zeros(min(len(x), NUM_CHECKED // 4), x.shape[1], dtype=torch.float64, device=x.device)
        for row, numbers in enumerate(x[: len(total)].double()):
            for expert, share in zip(ids[row].tolist(), shares[row].tolist(), strict=True):
                gate_up, down = pairs[expert]
                gate, up = (gate_up.double() @ numbers).chunk(2)
                total[row] += share * (down.double() @ (silu(gate) * up))
        return total

    name = f"experts, {x.shape[0]} rows, {num_chosen} of {len(pairs)}"
    num_bytes = x.dtype.itemsize * (num_read * size + x.numel()) + 4 * x.numel()
    run = partial(ops.experts_tree, x, ids, shares, experts)
    return [Case(name, run, want, num_bytes, 2 * ids.numel() * size)]


def _product(x: Tensor, weight: Tensor, quantization: Quantization) -> Tensor:
    rows = x[:NUM_CHECKED]
    numbers = rounded(rows, 1) if quantization == "fp8" else rows
    return numbers.double() @ quantize(weight, quantization).double().T


def _num_bytes(x: Tensor, weight: Tensor, quantization: Quantization) -> int:
    return x.dtype.itemsize * x.numel() + int(BYTES[quantization] * weight.numel())


def _num_operations(x: Tensor, weight: Tensor, quantization: Quantization) -> int:
    """As bfloat16 ones, of which the tensor cores do half as many a second as of float8."""
    return (1 if quantization == "fp8" else 2) * x.shape[0] * weight.numel()
