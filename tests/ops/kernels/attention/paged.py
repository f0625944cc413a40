"""Sequences in a paged cache: what they are made of, and attention over them in float64."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ops.interface import AttentionMetadata
from tests.ops.kernels.where import DEVICE

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Paged:
    """Caches [num_blocks, K, 16, head_dim] that are NaN wherever no sequence has a token."""

    keys: Tensor
    values: Tensor
    tables: Tensor
    context_lens: list[int]

    def metadata(self, query_lens: list[int], context_lens: list[int] | None = None) -> AttentionMetadata:
        """The last query_lens[s] positions of each sequence, or of its first context_lens[s]
        tokens.
        """
        lens = context_lens or self.context_lens
        return AttentionMetadata(
            query_starts=torch.tensor([0, *query_lens], device=DEVICE).cumsum(0).int(),
            context_lens=torch.tensor(lens, dtype=torch.int32, device=DEVICE),
            block_tables=self.tables,
            slot_mapping=torch.zeros(sum(query_lens), dtype=torch.int32, device=DEVICE),
            max_query_len=max(query_lens),
            max_context_len=max(lens),
        )

    def only(self, sequence: int) -> "Paged":
        table = self.tables[sequence : sequence + 1].contiguous()
        return Paged(self.keys, self.values, table, [self.context_lens[sequence]])


def make_paged(context_lens: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype) -> Paged:
    """Random keys and values; each sequence's blocks are dealt out at random."""
    counts = [-(-length // BLOCK) for length in context_lens]
    blocks = (1 + torch.randperm(sum(counts))).split(counts)
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    caches = torch.full((2, 1 + sum(counts), kv_heads, BLOCK, head_dim), torch.nan)
    for row, ids, length in zip(tables, blocks, context_lens, strict=True):
        row[: len(ids)] = ids
        tokens = torch.full((2, len(ids) * BLOCK, kv_heads, head_dim), torch.nan)
        tokens[:, :length] = torch.randn(2, length, kv_heads, head_dim)
        caches[:, ids] = tokens.unflatten(1, (len(ids), BLOCK)).transpose(2, 3)
    keys, values = caches.to(DEVICE).to(dtype)
    return Paged(keys, values, tables.to(DEVICE), context_lens)


def attend(query: Tensor, paged: Paged, query_lens: list[int], scale: float) -> Tensor:
    """query [T, H, head_dim] -> the same, float64."""
    outputs = []
    starts = torch.tensor([0, *query_lens]).cumsum(0).tolist()
    for index, (begin, end) in enumerate(pairwise(starts)):
        length = paged.context_lens[index]
        table = paged.tables[index, : -(-length // BLOCK)].long()
        share = query.shape[1] // paged.keys.shape[1]
        keys, values = (
            cache.double()[table].transpose(1, 2).flatten(0, 1)[:length].repeat_interleave(share, 1)
            for cache in (paged.keys, paged.values)
        )
        scores = torch.einsum("thd,nhd->htn", query[begin:end].double(), keys) * scale
        last = torch.arange(length - (end - begin), length, device=query.device)
        scores.masked_fill_(torch.arange(length, device=query.device) > last[:, None], -torch.inf)
        outputs.append(torch.einsum("htn,nhd->thd", scores.softmax(-1), values))
    return torch.cat(outputs)
