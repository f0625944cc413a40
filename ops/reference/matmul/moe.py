"""Mixture of experts: which experts a row goes to, and the weighted sum of what they give."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.checks import check_expert_leaves, gated_sizes, route_sizes
from ops.interface import Quantization, Weight, check_shape
from ops.reference.activation import gate_up_silu, prepare_gate_up
from ops.reference.matmul.linear import Prepared, linear_float32, prepare_linear
from ops.tree import add_tree


@dataclass(frozen=True, slots=True)
class Experts:
    """Neighbouring experts, each as its weights of prepare_gate_up and prepare_linear."""

    weights: list[tuple[Prepared, Prepared]]
    first: int  # the id of weights[0]
    num_leaves: int


def prepare_experts(
    experts: Iterable[tuple[Weight, Weight]], first: int, num_leaves: int, quantization: Quantization | None = None
) -> Experts:
    weights = [
        (prepare_gate_up(gate_up, quantization), prepare_linear(down, quantization)) for gate_up, down in experts
    ]
    check_expert_leaves(len(weights), num_leaves)
    return Experts(weights, first, num_leaves)


def route(logits: Tensor, num_chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    route_sizes(logits, num_chosen)
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
    gated_sizes(gate, x, total)
    total += torch.sigmoid(gate) * x
