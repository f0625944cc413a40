"""Linears whose rows have low-rank adapters: each row's product, and that of its adapter."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.checks import adapter_sizes
from ops.interface import Adapted, AdapterPart, AdapterSlots, check_shape
from ops.reference.matmul.linear import Prepared, TreeWeight, linear_float32
from ops.tree import add_tree


@dataclass(frozen=True, slots=True)
class Adapter:
    """Its parts as they are; `num_outputs` are the weight's."""

    parts: Sequence[AdapterPart]
    num_outputs: int

    @property
    def num_bytes(self) -> int:
        return sum(part.down.nbytes + part.up.nbytes for part in self.parts)


def make_adapter(parts: Sequence[AdapterPart], weight: Prepared | TreeWeight) -> Adapter:
    leaves = weight.leaves if isinstance(weight, TreeWeight) else [weight]
    num_outputs, length = leaves[0].shape
    adapter_sizes(parts, num_outputs, length * len(leaves), parts[0].down.dtype if parts else torch.float32)
    return Adapter(tuple(parts), num_outputs)


def make_adapter_slots(num_slots: int, max_rank: int, num_parts: int) -> AdapterSlots:
    slots: list[Adapter | None] = [None] * num_slots
    return slots


def adapted_linear(x: Tensor, weight: Prepared, bias: Tensor | None, adapted: Adapted) -> Tensor:
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],), x.dtype)
    total = linear_float32(x, weight) + _products(x, weight.shape[0], adapted, slice(None))
    return (total if bias is None else total + bias.float()).to(x.dtype)


def adapted_gate_up_silu(x: Tensor, weight: Prepared, adapted: Adapted) -> Tensor:
    total = linear_float32(x, weight) + _products(x, weight.shape[0], adapted, slice(None))
    gate, up = total.chunk(2, dim=1)
    return (F.silu(gate) * up).to(x.dtype)


def adapted_linear_tree(x: Tensor, weight: TreeWeight, adapted: Adapted) -> Tensor:
    num_outputs, length = weight.leaves[0].shape
    check_shape("x", x, (None, len(weight.leaves) * length))
    sums = []
    for index, leaf in enumerate(weight.leaves):
        inputs = slice(index * length, (index + 1) * length)
        part = x[:, inputs].contiguous()
        sums.append(linear_float32(part, leaf) + _products(part, num_outputs, adapted, inputs))
    return add_tree(sums)


def _products(x: Tensor, num_outputs: int, adapted: Adapted, inputs: slice) -> Tensor:
    """[T, num_outputs] float32: what the adapters add, of these inputs of theirs."""
    check_shape("runs", adapted.runs, (None, 3), torch.int32)
    total = torch.zeros((x.shape[0], num_outputs), device=x.device)
    for first, end, slot in adapted.runs.tolist():
        adapter = adapted.slots[slot]
        for part in () if adapter is None else adapter.parts:
            inner = part.scale * (x[first:end].float() @ part.down[:, inputs].float().T)
            total[first:end, part.outputs] = inner.to(x.dtype).float() @ part.up.float().T
    return total
