"""Causal attention over the paged cache."""

import torch
from torch import Tensor

from ops.cpu.checks import cache_sizes, sizes
from ops.cpu.library import dtype_number, library
from ops.interface import AttentionMetadata, check_shape

HEAD_DIMS = range(32, 1 << 16, 32)


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """query [T, H, head_dim] dtype; caches [num_blocks, K, block_size, head_dim] dtype -> [T, H,
    head_dim] dtype.
    """
    num_blocks, num_kv_heads, block_size, head_dim = cache_sizes(key_cache, value_cache)
    if block_size % 16 or head_dim not in HEAD_DIMS:
        raise ValueError(f"block_size={block_size} is not a multiple of 16, or head_dim={head_dim} not one of 32")
    num_rows, num_heads, _ = sizes("query", query, 3)
    check_shape("query", query, (num_rows, num_heads, head_dim), key_cache.dtype)
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not share {num_kv_heads} key-value heads evenly")
    num_sequences = metadata.context_lens.shape[0]
    check_shape("context_lens", metadata.context_lens, (num_sequences,), torch.int32)
    check_shape("query_starts", metadata.query_starts, (num_sequences + 1,), torch.int32)
    _, width = sizes("block_tables", metadata.block_tables, 2)
    check_shape("block_tables", metadata.block_tables, (num_sequences, width), torch.int32)
    result = torch.empty_like(query)
    wrong = library().squadron_paged_attention(
        query.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        result.data_ptr(),
        metadata.query_starts.data_ptr(),
        metadata.context_lens.data_ptr(),
        metadata.block_tables.data_ptr(),
        num_rows,
        num_sequences,
        width,
        num_blocks,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        scale,
        dtype_number(query),
        torch.get_num_threads(),
    )
    if wrong >= 0:
        raise ValueError(f"sequence {wrong} of the metadata has rows, a context or blocks that do not exist")
    return result
