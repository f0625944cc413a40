"""Mixture of experts: which experts a row goes to, and the weighted sum of what they give."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.interface import Quantization, check_shape
from ops.reference.activation import gate_up_silu, prepare_gate_up
from ops.reference.linear import Prepared, linear_float32, prepare_linear
from ops.tree import add_tree


@dataclass(frozen=True, slots=True)
class Experts:
    """Neighbouring experts, each as its weights of prepare_gate_up and prepare_linear."""

    weights: list[tuple[Prepared, Prepared]]
    first: int  # the id of weights[0]
    num_leaves: int


def prepare_experts(
    experts: Iterable[tuple[Tensor, Tensor]], first: int, num_leaves: int, quantization: Quantization | None = None
) -> Experts:
    weights = [
        (prepare_gate_up(gate_up, quantization), prepare_linear(down, quantization)) for gate_up, down in experts
    ]
    if num_leaves < 1 or num_leaves & (num_leaves - 1) or not weights or len(weights) % num_leaves:
        raise ValueError(f"{len(weights)} experts cannot be cut into {num_leaves} leaves, a power of two")
    return Experts(weights, first, num_leaves)


def route(logits: Tensor, num_chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    check_shape("logits", logits, (None, None), torch.float32)
    if not 1 <= num_chosen <= logits.shape[1]:
        raise ValueError(f"{num_chosen} of {logits.shape[1]} experts cannot be chosen")
    ids = logits.sort(dim=1, descending=True, stable=True).indices[:, :num_chosen].contiguous()
    probabilities = torch.softmax(logits, 1).gather(1, ids)
    if normalize:
        probabilities = probabilities / probabilities.sum(1, keepdim=True)
    return ids.int(), probabilities


def experts_tree(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    check_shape("x", x, (None, experts.weights[0][0].shape[1]))
    check_shape("ids", ids, (x.shape[0], None), torch.int32)
    check_shape("weights", weights, tuple(ids.shape), torch.float32)
    size = len(experts.weights) // experts.num_leaves
    return add_tree([_leaf(x, ids, weights, experts, start, size) for start in range(0, len(experts.weights), size)])


def _leaf(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, start: int, size: int) -> Tensor:
    """The sum over `size` experts from weights[start] on, in order of id."""
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for index in range(start, start + size):
        rows, slots = torch.where(ids == experts.first + index)
        if len(rows):
            gate_up, down = experts.weights[index]
            output = linear_float32(gate_up_silu(x[rows], gate_up), down)
            total[rows] += weights[rows, slots, None] * output
    return total


def add_gated(gate: Tensor, x: Tensor, total: Tensor) -> None:
    check_shape("gate", gate, (x.shape[0], 1), torch.float32)
    check_shape("x", x, (None, None), torch.float32)
    check_shape("total", total, tuple(x.shape), torch.float32)
    total += torch.sigmoid(gate) * x
