"""Paged attention over a flat mixed batch of prefill and decode rows: gather, then
matmul-softmax-matmul in float32.
"""

from itertools import pairwise

import torch
from torch import Tensor

from ops.interface import AttentionMetadata, check_shape

# float32 elements of keys that are gathered, and of scores that are computed, at once: bounds the
# memory of a step.
MAX_ELEMENTS = 1 << 20
HEAD_DIMS = range(2, 1 << 16, 2)


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    _, num_kv_heads, _, head_dim = key_cache.shape
    check_shape("query", query, (None, None, head_dim), key_cache.dtype)
    check_shape("value_cache", value_cache, tuple(key_cache.shape), query.dtype)
    check_shape("block_tables", metadata.block_tables, (metadata.context_lens.shape[0], None))
    if query.shape[1] % num_kv_heads:
        raise ValueError(f"{query.shape[1]} query heads cannot share {num_kv_heads} key-value heads evenly")
    starts = metadata.query_starts.tolist()
    query_lens = [end - start for start, end in pairwise(starts)]
    output = torch.empty_like(query)
    for group in _groups(query_lens, metadata.context_lens.tolist(), num_kv_heads * head_dim):
        query_len = query_lens[group[0]]
        sequences = torch.tensor(group, device=query.device)
        first_rows = metadata.query_starts[sequences].long()
        rows = (first_rows[:, None] + torch.arange(query_len, device=query.device)).flatten()
        context_lens = metadata.context_lens[sequences]
        num_blocks = -(-int(context_lens.max()) // key_cache.shape[2])
        tables = metadata.block_tables[sequences, :num_blocks].long()
        keys, values = _gather(key_cache, tables), _gather(value_cache, tables)
        beyond = torch.arange(values.shape[2], device=query.device) >= context_lens[:, None]
        values.transpose(1, 2)[beyond] = 0.0  # a NaN, left by a block's last owner, would stay NaN with weight 0
        queries = query[rows].view(len(group), query_len, *query.shape[1:])
        output[rows] = _attend(queries, keys, values, context_lens, scale).flatten(0, 1).to(query.dtype)
    return output


def _groups(query_lens: list[int], context_lens: list[int], width: int) -> list[list[int]]:
    """Sequences to compute at once: as many query rows each, contexts within a factor of two,
    MAX_ELEMENTS of keys in all.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for sequence, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
        if query_len:
            alike.setdefault((query_len, max(context_len, 16).bit_length()), []).append(sequence)
    groups = []
    for (_, bits), sequences in alike.items():
        size = max(1, MAX_ELEMENTS // (width << bits))
        groups += [sequences[start : start + size] for start in range(0, len(sequences), size)]
    return groups


def _gather(cache: Tensor, tables: Tensor) -> Tensor:
    """The pages in `tables` [S, B] one after the other, [S, K, L, head_dim] float32."""
    pages = cache[tables].transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return pages.flatten(2, 3)


def _attend(query: Tensor, keys: Tensor, values: Tensor, context_lens: Tensor, scale: float) -> Tensor:
    """query [S, N, H, head_dim], the last N of each context; keys, values [S, K, L, head_dim];
    returns float32 as query.

    The query heads that share a key-value head are rows of one product. Query rows are taken in
    tiles of bounded size.
    """
    num_sequences, query_len, num_heads, _ = query.shape
    num_kv_heads, length = keys.shape[1:3]
    output = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    tile = max(1, MAX_ELEMENTS // (num_sequences * num_heads * length))
    for start in range(0, query_len, tile):
        part = query[:, start : start + tile].float().unflatten(2, (num_kv_heads, -1)).transpose(1, 2)
        rows = torch.arange(start, start + part.shape[2], device=query.device)
        last_key = context_lens[:, None] - query_len + rows  # [S, N']
        visible = torch.arange(length, device=query.device) <= last_key[:, :, None]
        scores = part.flatten(2, 3) @ keys.mT  # [S, K, N' * H / K, L]
        scores = scores.mul_(scale).unflatten(2, (part.shape[2], -1))
        weights = scores.masked_fill_(~visible[:, None, :, None], -torch.inf).softmax(dim=-1)
        attended = weights.flatten(2, 3) @ values
        output[:, start : start + tile] = attended.unflatten(2, (part.shape[2], -1)).transpose(1, 2).flatten(2, 3)
    return output
