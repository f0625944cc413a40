"""Mixture of experts on packed linears: each expert's rows are gathered and go through it
together.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.checks import check_expert_leaves, gated_sizes, route_sizes
from ops.cpu.checks import sizes
from ops.cpu.library import library
from ops.cpu.matmul.int8 import PRODUCT8
from ops.cpu.matmul.linear import prepare_gate_up, prepare_linear
from ops.cpu.matmul.packed import PackedWeight
from ops.interface import Quantization, Weight, check_shape

_MULTIPLES = {
    None: "odd numbers are not computed in bfloat16",
    "int8": "only multiples of 4 are computed in int8",
    "int4": "only multiples of 4 are computed in int4",
}


@dataclass(frozen=True, slots=True)
class Experts:
    """Neighbouring experts of one size."""

    gate_up: list[PackedWeight]  # own what the addresses point to
    down: list[PackedWeight]
    gate_up_addresses: ctypes.Array[ctypes.c_void_p]
    down_addresses: ctypes.Array[ctypes.c_void_p]
    first: int  # the id of the first of them
    num_leaves: int


def prepare_experts(
    experts: Iterable[tuple[Weight, Weight]], first: int, num_leaves: int, quantization: Quantization | None = None
) -> Experts:
    """Each one's gate and up [2 * I, D] dtype and down [D, I], of the same even sizes; their number
    is a multiple of leaves.

    Quantized, the sizes are multiples of four.
    """
    gate_up, down = [], []
    for gate_up_weight, down_weight in experts:
        gate_up.append(prepare_gate_up(gate_up_weight, quantization))
        down.append(prepare_linear(down_weight, quantization))
    check_expert_leaves(len(gate_up), num_leaves)
    hidden, inner = gate_up[0].in_features, gate_up[0].out_features
    for up, output in zip(gate_up, down, strict=True):
        found = up.in_features, up.out_features, output.in_features, output.out_features
        if found != (hidden, inner, inner, hidden):
            raise ValueError(f"experts of {hidden} and {inner} columns: one takes and gives {list(found)}")
        if up.padding or output.padding:
            raise ValueError(f"experts of {hidden} and {inner} columns: {_MULTIPLES[quantization]}")
        if PRODUCT8 in (up.description.codes, output.description.codes):
            raise ValueError("experts whose inputs are rounded to 8 bits are not computed")
        if up.order is not None or output.order is not None:
            raise ValueError("experts whose inputs are not in order of their groups (act-order) are not computed")
    addresses = ctypes.c_void_p * len(gate_up)
    return Experts(
        gate_up,
        down,
        addresses(*(weight.address for weight in gate_up)),
        addresses(*(weight.address for weight in down)),
        first,
        num_leaves,
    )


def route(logits: Tensor, num_chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] float32 -> ids [T, num_chosen] int32, the likeliest first, and their
    probabilities, float32.
    """
    num_rows, num_experts = route_sizes(logits, num_chosen)
    ids = torch.empty((num_rows, num_chosen), dtype=torch.int32)
    probabilities = torch.empty((num_rows, num_chosen))
    library().squadron_route(
        logits.data_ptr(),
        num_rows,
        num_experts,
        num_chosen,
        normalize,
        ids.data_ptr(),
        probabilities.data_ptr(),
        torch.get_num_threads(),
    )
    return ids, probabilities


def experts_tree(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """x [T, D] dtype; ids [T, k] int32, weights [T, k] float32 -> [T, D] float32."""
    num_rows, _ = sizes("x", x, 2)
    _, num_chosen = sizes("ids", ids, 2)
    check_shape("x", x, (num_rows, experts.gate_up[0].in_features), experts.gate_up[0].dtype)
    check_shape("ids", ids, (num_rows, num_chosen), torch.int32)
    check_shape("weights", weights, (num_rows, num_chosen), torch.float32)
    result = torch.empty(x.shape)
    library().squadron_experts(
        experts.gate_up_addresses,
        experts.down_addresses,
        experts.first,
        len(experts.gate_up),
        experts.num_leaves,
        x.data_ptr(),
        num_rows,
        ids.data_ptr(),
        weights.data_ptr(),
        num_chosen,
        result.data_ptr(),
        torch.get_num_threads(),
    )
    return result


def add_gated(gate: Tensor, x: Tensor, total: Tensor) -> None:
    """total [T, D] float32 += sigmoid(gate) * x, in place; gate [T, 1] float32, x [T, D]
    float32.
    """
    num_rows, size = gated_sizes(gate, x, total)
    library().squadron_add_gated(
        gate.data_ptr(), x.data_ptr(), total.data_ptr(), num_rows, size, torch.get_num_threads()
    )
