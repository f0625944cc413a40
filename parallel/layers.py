"""The layers between the cuts: RMS norm, a decoder layer."""

from collections.abc import Mapping

from torch import Tensor

from ops.interface import AttentionMetadata, Ops
from parallel.adapters.adapter import Factors, RowAdapters, ShardAdapter
from parallel.attention import Attention, QKNorm
from parallel.groups.group import Group
from parallel.linear import QKVParallelLinear, RowParallelLinear
from parallel.mlp import GatedMLP
from parallel.moe import MoE
from parallel.spec.layer import LayerShape, MoEShape
from parallel.weights import Weights


class RMSNorm:
    """Every rank has all of it."""

    def __init__(self, eps: float, *, ops: Ops) -> None:
        self.eps = eps
        self.ops = ops

    def load(self, weights: Weights, name: str) -> None:
        self.weight = weights.read(f"{name}.weight", slice(None))

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, D] dtype -> the same."""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, update: Tensor, residual: Tensor) -> Tensor:
        """residual [T, D] dtype += update, in place; returns the sum's norm. update: as
        `RowParallelLinear.update`.
        """
        return self.ops.add_rms_norm(update, residual, self.weight, self.eps)


class DecoderLayer:
    """Attention and MLP (or experts), each behind a norm, each adding to the residual stream.

    A layer's last sum is passed on as `update`, which the next norm adds in the same pass.
    """

    def __init__(self, shape: LayerShape, moe: MoEShape | None, *, num_leaves: int, ops: Ops, group: Group) -> None:
        """moe: the experts of this layer instead of an MLP; num_leaves: the leaves of sums over
        ranks.
        """
        num_heads, num_kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.input_norm = RMSNorm(shape.norm_eps, ops=ops)
        self.qkv = QKVParallelLinear(
            num_heads, num_kv_heads, head_dim, has_bias=shape.has_qkv_bias, ops=ops, group=group
        )
        self.qk_norm = QKNorm(self.qkv.num_kv_heads, shape.norm_eps, ops=ops) if shape.has_qk_norm else None
        self.attention = Attention(head_dim, ops=ops)
        self.output = RowParallelLinear(num_heads * head_dim, num_leaves=num_leaves, ops=ops, group=group)
        self.post_norm = RMSNorm(shape.norm_eps, ops=ops)
        self.mlp = (
            GatedMLP(shape.intermediate_size, num_leaves=num_leaves, ops=ops, group=group)
            if moe is None
            else MoE(moe, num_leaves=num_leaves, ops=ops, group=group)
        )

    def load(self, weights: Weights, prefix: str) -> None:
        self.input_norm.load(weights, f"{prefix}.input_layernorm")
        self.qkv.load(weights, f"{prefix}.self_attn")
        if self.qk_norm is not None:
            self.qk_norm.load(weights, f"{prefix}.self_attn")
        self.output.load(weights, f"{prefix}.self_attn.o_proj")
        self.post_norm.load(weights, f"{prefix}.post_attention_layernorm")
        self.mlp.load(weights, f"{prefix}.mlp")

    def load_adapter(self, factors: Mapping[str, Factors], prefix: str, adapter: ShardAdapter) -> None:
        """Add to `adapter` what there is of this layer's linears."""
        self.qkv.load_adapter(factors, f"{prefix}.self_attn", adapter)
        self.output.load_adapter(factors, f"{prefix}.self_attn.o_proj", adapter)
        self.mlp.load_adapter(factors, f"{prefix}.mlp", adapter)

    def __call__(
        self,
        update: Tensor | None,
        residual: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_cache: tuple[Tensor, Tensor],
        metadata: AttentionMetadata,
        adapters: RowAdapters | None = None,
    ) -> Tensor:
        """update [T, D] float32 of the layer before (or leaves: `RowParallelLinear.update`), not
        yet in residual [T, D] dtype; returns this layer's.
        """
        normed = self.input_norm(residual) if update is None else self.input_norm.add(update, residual)
        attended = self._attended(normed, positions, cos_sin, kv_cache, metadata, adapters)
        return self.mlp.update(self.post_norm.add(self.output.update(attended, adapters), residual), adapters)

    def _attended(
        self,
        normed: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_cache: tuple[Tensor, Tensor],
        metadata: AttentionMetadata,
        adapters: RowAdapters | None,
    ) -> Tensor:
        """The heads' values [T, H * head_dim] dtype."""
        if self.qk_norm is None and (adapters is None or adapters.of(self.qkv) is None):
            query = self.qkv.rotated(normed, positions, cos_sin, metadata.slot_mapping, kv_cache)
            return self.attention.attend(query, kv_cache, metadata)
        qkv = self.qkv(normed, adapters)
        if self.qk_norm is not None:
            qkv = self.qk_norm(qkv)
        return self.attention(qkv, positions, cos_sin, kv_cache, metadata)
