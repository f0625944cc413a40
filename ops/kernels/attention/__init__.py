"""Attention over the paged cache, and what writes and moves its blocks."""

from ops.kernels.attention.blocks import copy_blocks, swap_blocks
from ops.kernels.attention.paged import HEAD_DIMS, paged_attention
from ops.kernels.attention.qkv import linear_rotary_and_cache
from ops.kernels.attention.rotary import rotary_and_cache

__all__ = [
    "HEAD_DIMS",
    "copy_blocks",
    "linear_rotary_and_cache",
    "paged_attention",
    "rotary_and_cache",
    "swap_blocks",
]
