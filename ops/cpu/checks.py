"""Fast argument checks: a launcher's own time matters when a step makes two hundred calls."""

import torch
from torch import Tensor

from ops.interface import check_shape


def sizes(name: str, tensor: Tensor, dims: int) -> torch.Size:
    """The tensor's sizes; ValueError unless it has `dims` dimensions and is contiguous."""
    if tensor.dim() != dims or not tensor.is_contiguous():
        check_shape(name, tensor, (None,) * dims)
    return tensor.shape


def cache_sizes(key_cache: Tensor, value_cache: Tensor) -> torch.Size:
    """num_blocks, kv_heads, block_size and head_dim of two caches that are alike; ValueError if
    they are not.
    """
    shape = sizes("key_cache", key_cache, 4)
    check_shape("value_cache", value_cache, shape, key_cache.dtype)
    return shape
