"""Attention of this rank's heads over its part of the paged cache."""

from torch import Tensor

from ops.interface import AttentionMetadata, Ops


class Attention:
    """Rotates, writes keys and values to their slots, attends. Holds no cache: that is an argument."""

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
        return self.ops.paged_attention(query, *kv_cache, metadata, self.scale).flatten(1)
