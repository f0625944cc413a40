"""The gated MLP: silu(gate) * up, then down, cut by the columns between."""

from collections.abc import Mapping

from torch import Tensor

from ops.interface import Ops
from parallel.adapters.adapter import Factors, RowAdapters, ShardAdapter
from parallel.groups.group import Group
from parallel.linear import MergedColumnParallelLinear, RowParallelLinear
from parallel.weights import Weights


class GatedMLP:
    """Each rank computes a share of the inner columns; their products with down are added over the
    ranks.
    """

    def __init__(self, intermediate_size: int, *, num_leaves: int, ops: Ops, group: Group) -> None:
        self.gate_up = MergedColumnParallelLinear(intermediate_size, ops=ops, group=group)
        self.down = RowParallelLinear(intermediate_size, num_leaves=num_leaves, ops=ops, group=group)

    def load(self, weights: Weights, prefix: str) -> None:
        self.gate_up.load(weights, prefix)
        self.down.load(weights, f"{prefix}.down_proj")

    def load_adapter(self, factors: Mapping[str, Factors], prefix: str, adapter: ShardAdapter) -> None:
        """Add to `adapter` what there is of these linears."""
        self.gate_up.load_adapter(factors, prefix, adapter)
        self.down.load_adapter(factors, f"{prefix}.down_proj", adapter)

    def __call__(self, x: Tensor, adapters: RowAdapters | None = None) -> Tensor:
        """x [T, D] dtype -> [T, D] float32, the sum over all ranks."""
        return self.down(self.gate_up(x, adapters), adapters)

    def update(self, x: Tensor, adapters: RowAdapters | None = None) -> Tensor:
        """As `RowParallelLinear.update`."""
        return self.down.update(self.gate_up(x, adapters), adapters)
