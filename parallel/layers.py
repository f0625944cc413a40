"""The layers between the cuts: RMS norm, the gated MLP, a decoder layer."""

from dataclasses import dataclass

from torch import Tensor

from ops.interface import AttentionMetadata, Ops
from parallel.attention import Attention
from parallel.group import Group
from parallel.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from parallel.weights import Weights


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a decoder layer is made of, before it is cut."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_qkv_bias: bool
    norm_eps: float
    num_leaves: int  # virtual shards of the row-parallel linears


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
        """residual [T, D] dtype += update [T, D] float32, in place; returns the sum's norm."""
        return self.ops.add_rms_norm(update, residual, self.weight, self.eps)


class DecoderLayer:
    """Attention and MLP, each behind a norm, each adding to the residual stream.

    What a layer adds last is handed on as `update`, for the next norm to add in the same pass.
    """

    def __init__(self, shape: LayerShape, *, ops: Ops, group: Group) -> None:
        num_heads, num_kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.input_norm = RMSNorm(shape.norm_eps, ops=ops)
        self.qkv = QKVParallelLinear(
            num_heads, num_kv_heads, head_dim, has_bias=shape.has_qkv_bias, ops=ops, group=group
        )
        self.attention = Attention(head_dim, ops=ops)
        self.output = RowParallelLinear(num_heads * head_dim, num_leaves=shape.num_leaves, ops=ops, group=group)
        self.post_norm = RMSNorm(shape.norm_eps, ops=ops)
        self.gate_up = MergedColumnParallelLinear(shape.intermediate_size, ops=ops, group=group)
        self.down = RowParallelLinear(shape.intermediate_size, num_leaves=shape.num_leaves, ops=ops, group=group)

    def load(self, weights: Weights, prefix: str) -> None:
        self.input_norm.load(weights, f"{prefix}.input_layernorm")
        self.qkv.load(weights, f"{prefix}.self_attn")
        self.output.load(weights, f"{prefix}.self_attn.o_proj")
        self.post_norm.load(weights, f"{prefix}.post_attention_layernorm")
        self.gate_up.load(weights, f"{prefix}.mlp")
        self.down.load(weights, f"{prefix}.mlp.down_proj")

    def __call__(
        self,
        update: Tensor | None,
        residual: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_cache: tuple[Tensor, Tensor],
        metadata: AttentionMetadata,
    ) -> Tensor:
        """update [T, D] float32 of the layer before, not yet in residual [T, D] dtype; returns this layer's."""
        normed = self.input_norm(residual) if update is None else self.input_norm.add(update, residual)
        attended = self.attention(self.qkv(normed), positions, cos_sin, kv_cache, metadata)
        normed = self.post_norm.add(self.output(attended), residual)
        return self.down(self.gate_up(normed))
