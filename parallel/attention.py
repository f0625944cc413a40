"""Attention of this rank's heads over its part of the paged cache."""

from torch import Tensor

from ops.interface import AttentionMetadata, Ops
from parallel.weights import Weights


class Attention:
    """Rotates, writes keys and values to their slots, attends. Holds no cache: that is an
    argument.
    """

    def __init__(self, head_dim: int, *, ops: Ops) -> None:
        self.scale = head_dim**-0.5
        self.ops = ops

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_cache: tuple[Tensor, Tensor],
        metadata: AttentionMetadata,
    ) -> Tensor:
        """qkv [T, (H + 2 * K) * head_dim] dtype -> [T, H * head_dim] dtype, H and K this rank's."""
        query = self.ops.rotary_and_cache(qkv, positions, cos_sin, metadata.slot_mapping, *kv_cache)
        return self.attend(query, kv_cache, metadata)

    def attend(self, query: Tensor, kv_cache: tuple[Tensor, Tensor], metadata: AttentionMetadata) -> Tensor:
        """query [T, H, head_dim] dtype, rotated; keys and values are in their slots."""
        return self.ops.paged_attention(query, *kv_cache, metadata, self.scale).flatten(1)


class QKNorm:
    """RMS norm of each query and key head, before they are rotated. Every rank has the weights of
    all heads: one each.
    """

    def __init__(self, num_kv_heads: int, eps: float, *, ops: Ops) -> None:
        """num_kv_heads: this rank's."""
        self.num_kv_heads = num_kv_heads
        self.eps = eps
        self.ops = ops

    def load(self, weights: Weights, prefix: str) -> None:
        self.query_weight = weights.read(f"{prefix}.q_norm.weight", slice(None))
        self.key_weight = weights.read(f"{prefix}.k_norm.weight", slice(None))

    def __call__(self, qkv: Tensor) -> Tensor:
        """qkv [T, (H + 2 * K) * head_dim] dtype, written to; returns it."""
        self.ops.qk_norm(qkv, self.query_weight, self.key_weight, self.num_kv_heads, self.eps)
        return qkv
