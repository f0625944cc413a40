"""Linear layers cut over the ranks of a group: by output columns, or by inputs whose partial sums
are added.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ops.interface import Ops
from ops.published import PublishedWeight, cat
from parallel.adapters.adapter import Factors, RowAdapters, ShardAdapter, parts_of
from parallel.errors import InvalidCheckpoint
from parallel.groups.group import Group
from parallel.weights import Weights


def share(size: int, group: Group) -> slice:
    """This rank's part of `size` items that are divided evenly, neighbours together."""
    assert size % group.size == 0, f"{size} over {group.size} ranks"
    part = size // group.size
    return slice(group.rank * part, (group.rank + 1) * part)


def merged(parts: Sequence[Tensor | PublishedWeight], prefix: str) -> Tensor | PublishedWeight:
    """Weights of linears in `prefix` that read the same input, as one; raises InvalidCheckpoint if
    that is impossible.
    """
    plain = [part for part in parts if isinstance(part, Tensor)]
    published = [part for part in parts if isinstance(part, PublishedWeight)]
    if plain and published:
        raise InvalidCheckpoint(f"{prefix}: of linears that are multiplied together only some are quantized")
    try:
        return torch.cat(plain) if plain else cat(published)
    except ValueError as error:
        raise InvalidCheckpoint(f"{prefix}: {error}") from None


class ColumnParallelLinear:
    """Computes a share of the outputs of one linear, or of several that read the same input, one
    after the other.
    """

    def __init__(self, parts: dict[str, slice], *, has_bias: bool, ops: Ops) -> None:
        """parts: the name of each linear, and the outputs of it that are this rank's."""
        self.parts = parts
        self.num_parts = len(parts)
        self.has_bias = has_bias
        self.ops = ops

    def load(self, weights: Weights, prefix: str) -> None:
        rows = [weights.linear(f"{prefix}.{name}", part) for name, part in self.parts.items()]
        self.weight = self.ops.prepare_linear(merged(rows, prefix))
        biases = [weights.read(f"{prefix}.{name}.bias", part) for name, part in self.parts.items() if self.has_bias]
        self.bias = torch.cat(biases) if self.has_bias else None

    def load_adapter(self, factors: Mapping[str, Factors], prefix: str, adapter: ShardAdapter) -> None:
        """Add to `adapter` what there is of these linears."""
        if parts := parts_of(factors, prefix, self.parts):
            adapter.add(self, self.ops.make_adapter(parts, self.weight))

    def __call__(self, x: Tensor, adapters: RowAdapters | None = None) -> Tensor:
        """x [T, in] dtype -> [T, this rank's outputs] dtype."""
        adapted = None if adapters is None else adapters.of(self)
        if adapted is None:
            return self.ops.linear(x, self.weight, self.bias)
        return self.ops.adapted_linear(x, self.weight, self.bias, adapted)


class QKVParallelLinear(ColumnParallelLinear):
    """Queries, keys and values of this rank's heads; with more ranks than key-value heads,
    neighbours share one.
    """

    def __init__(
        self, num_heads: int, num_kv_heads: int, head_dim: int, *, has_bias: bool, ops: Ops, group: Group
    ) -> None:
        self.num_heads = num_heads // group.size
        self.num_kv_heads = max(1, num_kv_heads // group.size)
        heads = share(num_heads, group)
        first_kv_head = group.rank * num_kv_heads // group.size
        queries = slice(heads.start * head_dim, heads.stop * head_dim)
        keys = slice(first_kv_head * head_dim, (first_kv_head + self.num_kv_heads) * head_dim)
        super().__init__({"q_proj": queries, "k_proj": keys, "v_proj": keys}, has_bias=has_bias, ops=ops)

    def rotated(
        self,
        x: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        slot_mapping: Tensor,
        kv_cache: tuple[Tensor, Tensor],
    ) -> Tensor:
        """x [T, in] dtype -> rotated queries [T, H, head_dim] dtype; keys and values are written to
        their slots. Without adapters.
        """
        return self.ops.linear_rotary_and_cache(x, self.weight, self.bias, positions, cos_sin, slot_mapping, *kv_cache)


class MergedColumnParallelLinear:
    """Gate and up of a gated MLP, and the activation between them: one op, so that both products
    stay float32.
    """

    num_parts = 2

    def __init__(self, intermediate_size: int, *, ops: Ops, group: Group) -> None:
        self.part = share(intermediate_size, group)
        self.ops = ops

    def load(self, weights: Weights, prefix: str) -> None:
        rows = [weights.linear(f"{prefix}.{name}", self.part) for name in ("gate_proj", "up_proj")]
        self.weight = self.ops.prepare_gate_up(merged(rows, prefix))

    def load_adapter(self, factors: Mapping[str, Factors], prefix: str, adapter: ShardAdapter) -> None:
        """As `ColumnParallelLinear.load_adapter`."""
        if parts := parts_of(factors, prefix, {"gate_proj": self.part, "up_proj": self.part}):
            adapter.add(self, self.ops.make_adapter(parts, self.weight))

    def __call__(self, x: Tensor, adapters: RowAdapters | None = None) -> Tensor:
        """x [T, D] dtype -> silu(gate) * up, [T, this rank's share of I] dtype."""
        adapted = None if adapters is None else adapters.of(self)
        if adapted is None:
            return self.ops.gate_up_silu(x, self.weight)
        return self.ops.adapted_gate_up_silu(x, self.weight, adapted)


class RowParallelLinear:
    """Reads a share of the inputs; the ranks' float32 partial sums are added.

    The inputs are cut into `num_leaves` leaves, whatever the number of ranks, and their products
    are added in one balanced binary tree: a rank adds the subtree of the neighbouring leaves that
    it has, `all_reduce` adds the rest. So the sum has the same bits on 1, 2, 4 ranks, if the
    backend's products have.
    """

    num_parts = 1

    def __init__(self, num_in: int, *, num_leaves: int, ops: Ops, group: Group) -> None:
        assert num_leaves % group.size == 0, f"{num_leaves} leaves over {group.size} ranks"
        self.part = share(num_in, group)
        self.num_leaves = num_leaves // group.size
        self.ops = ops
        self.group = group

    def load(self, weights: Weights, name: str) -> None:
        weight = weights.linear(name, slice(None), self.part)
        self.weight = self.ops.prepare_tree_linear(weight, self.num_leaves)

    def load_adapter(self, factors: Mapping[str, Factors], name: str, adapter: ShardAdapter) -> None:
        """As `ColumnParallelLinear.load_adapter`."""
        if (found := factors.get(name)) is not None:
            part = found.part(slice(None), self.part, slice(0, found.up.shape[0]))
            adapter.add(self, self.ops.make_adapter([part], self.weight))

    def __call__(self, x: Tensor, adapters: RowAdapters | None = None) -> Tensor:
        """x [T, this rank's inputs] dtype -> [T, out] float32, the sum over all ranks."""
        adapted = None if adapters is None else adapters.of(self)
        if adapted is None:
            return self.group.all_reduce(self.ops.linear_tree(x, self.weight))
        return self.group.all_reduce(self.ops.adapted_linear_tree(x, self.weight, adapted))

    def update(self, x: Tensor, adapters: RowAdapters | None = None) -> Tensor:
        """For the backend's add_rms_norm or add: the same sum, or what it is the sum of. One rank
        alone has all leaves, and need not add them before.
        """
        if self.group.size > 1 or (adapters is not None and adapters.of(self) is not None):
            return self(x, adapters)
        return self.ops.linear_leaves(x, self.weight)
