"""Mixture of experts, divided over the ranks of a group: each expert is whole on one rank.

Every rank routes every row, which takes one small linear, and computes those of its experts that
were chosen. The sum over a row's experts is taken in one order whatever the number of ranks, as
RowParallelLinear's is: the experts are cut into `num_leaves` leaves of neighbours; within a leaf
they are added in order of id, leaves are added in one balanced binary tree, of which a rank adds
the subtree that it has and `all_reduce` the rest. A layer exchanges as much as a dense one.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor

from ops.interface import Ops
from ops.published import PublishedWeight
from parallel.adapters.adapter import Factors, RowAdapters, ShardAdapter
from parallel.errors import InvalidCheckpoint
from parallel.groups.group import Group
from parallel.linear import merged, share
from parallel.mlp import GatedMLP
from parallel.spec.layer import MoEShape
from parallel.weights import Weights


class MoE:
    """This rank's experts and its share of the shared one; the router and the shared one's gate are
    on every rank.
    """

    def __init__(self, shape: MoEShape, *, num_leaves: int, ops: Ops, group: Group) -> None:
        assert num_leaves % group.size == 0, f"{num_leaves} leaves over {group.size} ranks"
        self.shape = shape
        self.part = share(shape.num_experts, group)
        self.num_leaves = num_leaves // group.size
        self.ops = ops
        self.group = group
        has_shared = shape.shared_intermediate_size > 0
        self.shared = (
            GatedMLP(shape.shared_intermediate_size, num_leaves=num_leaves, ops=ops, group=group)
            if has_shared
            else None
        )

    def load(self, weights: Weights, prefix: str) -> None:
        # Never quantized: it is small, and its errors would change which experts are chosen.
        self.router = self.ops.prepare_linear(weights.read(f"{prefix}.gate.weight", slice(None)), quantization=None)
        experts = self._read_experts(weights, f"{prefix}.experts")
        try:
            self.experts = self.ops.prepare_experts(experts, self.part.start, self.num_leaves)
        except InvalidCheckpoint:
            raise
        except ValueError as error:  # of sizes or groups that the backend does not compute
            raise InvalidCheckpoint(f"{prefix}.experts: {error}") from None
        if self.shared is not None:
            self.shared.load(weights, f"{prefix}.shared_expert")
            gate = weights.read(f"{prefix}.shared_expert_gate.weight", slice(None))
            self.shared_gate = self.ops.prepare_linear(gate, quantization=None)

    def _read_experts(
        self, weights: Weights, prefix: str
    ) -> Iterator[tuple[Tensor | PublishedWeight, Tensor | PublishedWeight]]:
        """Gate and up, [2 * I, D], and down, [D, I], of each of this rank's."""
        for index in range(self.part.start, self.part.stop):
            gate, up, down = (
                weights.linear(f"{prefix}.{index}.{name}_proj", slice(None)) for name in ("gate", "up", "down")
            )
            yield merged((gate, up), f"{prefix}.{index}"), down

    def load_adapter(self, factors: Mapping[str, Factors], prefix: str, adapter: ShardAdapter) -> None:
        """Experts have no adapters: `parallel.spec.adapter` refuses those."""

    def __call__(self, x: Tensor, adapters: RowAdapters | None = None) -> Tensor:
        """x [T, D] dtype -> [T, D] float32, the sum over all ranks."""
        logits = self.ops.linear_float32(x, self.router)
        ids, probabilities = self.ops.route(logits, self.shape.num_chosen, self.shape.normalizes)
        total = self.group.all_reduce(self.ops.experts_tree(x, ids, probabilities, self.experts))
        if self.shared is not None:
            self.ops.add_gated(self.ops.linear_float32(x, self.shared_gate), self.shared(x), total)
        return total

    def update(self, x: Tensor, adapters: RowAdapters | None = None) -> Tensor:
        """As `GatedMLP.update`: the sum."""
        return self(x, adapters)
