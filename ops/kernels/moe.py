"""Mixture of experts, one expert after the other: exact, and slow, for the host waits to hear which rows each one has."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ops.interface import Quantization, check_shape
from ops.kernels.linear import gate_up_silu, linear_float32, prepare_gate_up, prepare_linear
from ops.reference.moe import Experts
from ops.tree import add_tree


def prepare_experts(
    experts: Iterable[tuple[Tensor, Tensor]], first: int, num_leaves: int, quantization: Quantization | None = None
) -> Experts:
    """Each one's gate and up [2 * I, D] dtype and down [D, I], kept as they are."""
    weights = [
        (prepare_gate_up(gate_up, quantization), prepare_linear(down, quantization)) for gate_up, down in experts
    ]
    if num_leaves < 1 or num_leaves & (num_leaves - 1) or not weights or len(weights) % num_leaves:
        raise ValueError(f"{len(weights)} experts cannot be cut into {num_leaves} leaves, a power of two")
    return Experts(weights, first, num_leaves)


def route(logits: Tensor, num_chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] float32 -> ids [T, num_chosen] int32, the likeliest first, and their probabilities, float32."""
    check_shape("logits", logits, (None, None), torch.float32)
    if not 1 <= num_chosen <= logits.shape[1]:
        raise ValueError(f"{num_chosen} of {logits.shape[1]} experts cannot be chosen")
    ids = logits.sort(dim=1, descending=True, stable=True).indices[:, :num_chosen].contiguous()
    probabilities = torch.softmax(logits, 1).gather(1, ids)
    if normalize:
        total = probabilities[:, :1].clone()
        for column in range(1, num_chosen):  # one after the other: a reduction's order may depend on the number of rows
            total += probabilities[:, column : column + 1]
        probabilities = probabilities / total
    return ids.int(), probabilities


def experts_tree(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """x [T, D] dtype; ids [T, k] int32, weights [T, k] float32 -> [T, D] float32."""
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
            total[rows] += weights[rows, slots, None] * linear_float32(gate_up_silu(x[rows], gate_up), down)
    return total
