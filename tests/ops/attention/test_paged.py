import pytest
import torch
from torch import Tensor

from ops.interface import AttentionMetadata, Ops
from tests.ops.caches import laid_out
from tests.ops.exact import assert_rounded_once, dtypes

BLOCK, HEAD_DIM = 16, 32
SCALE = HEAD_DIM**-0.5


def metadata(query_lens: list[int], context_lens: list[int], device: torch.device) -> tuple[AttentionMetadata, int]:
    """Metadata with blocks dealt out at random from 1 on, and the number of blocks."""
    counts = [-(-length // BLOCK) for length in context_lens]
    blocks = (1 + torch.randperm(sum(counts))).split(counts)
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, ids in zip(tables, blocks, strict=True):
        row[: len(ids)] = ids
    query_starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    return AttentionMetadata(
        query_starts=query_starts.to(device),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        slot_mapping=torch.zeros(sum(query_lens), dtype=torch.int32, device=device),
        max_query_len=max(query_lens),
        max_context_len=max(context_lens),
    ), 1 + sum(counts)


def poisoned_cache(meta: AttentionMetadata, num_blocks: int, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """NaN wherever no sequence has a token, the null block included."""
    device = meta.block_tables.device
    cache = torch.full((num_blocks, kv_heads, BLOCK, HEAD_DIM), torch.nan, dtype=dtype, device=device)
    for table, length in zip(meta.block_tables.tolist(), meta.context_lens.tolist(), strict=True):
        for position in range(length):
            row = torch.randn(kv_heads, HEAD_DIM, device=device)
            cache[table[position // BLOCK], :, position % BLOCK] = row.to(dtype)
    return cache


def by_hand(query: Tensor, key_cache: Tensor, value_cache: Tensor, meta: AttentionMetadata) -> Tensor:
    """Row by row, head by head, in float64."""
    output = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    share = query.shape[1] // key_cache.shape[1]
    starts = meta.query_starts.tolist()
    for index, (table, length) in enumerate(zip(meta.block_tables, meta.context_lens.tolist(), strict=True)):
        keys, values = (cache[table.long()].transpose(1, 2).flatten(0, 1) for cache in (key_cache, value_cache))
        for row in range(starts[index], starts[index + 1]):
            seen = length - (starts[index + 1] - 1 - row)
            for head in range(query.shape[1]):
                scores = keys[:seen, head // share].double() @ query[row, head].double() * SCALE
                output[row, head] = scores.softmax(0) @ values[:seen, head // share].double()
    return output


@dtypes
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (3, 1)])
def test_a_mixed_batch(ops: Ops, device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    query_lens, context_lens = [1, 7, 1, 33, 1, 16, 1], [1, 7, 16, 33, 17, 50, 129]
    meta, num_blocks = metadata(query_lens, context_lens, device)
    caches = [poisoned_cache(meta, num_blocks, kv_heads, dtype) for _ in range(2)]
    query = torch.randn(sum(query_lens), heads, HEAD_DIM, device=device).to(dtype)
    got = ops.paged_attention(query, *laid_out(ops, *caches), meta, SCALE)
    assert got.dtype == dtype
    # A fast backend may cast the softmax's weights for their product with the values.
    slack = 2e-6 if ops.NAME == "reference" or dtype == torch.float32 else torch.finfo(dtype).eps / 2
    assert_rounded_once(got, by_hand(query, *caches, meta), slack)


def test_more_decode_rows_than_are_gathered_at_once(ops: Ops, device: torch.device) -> None:
    context_lens = list(range(200, 260, 2)) * 3
    meta, num_blocks = metadata([1] * len(context_lens), context_lens, device)
    caches = [poisoned_cache(meta, num_blocks, 4, torch.float32) for _ in range(2)]
    query = torch.randn(len(context_lens), 4, HEAD_DIM, device=device)
    assert_rounded_once(ops.paged_attention(query, *laid_out(ops, *caches), meta, SCALE), by_hand(query, *caches, meta))


def test_a_prompt_in_chunks_of_any_size(ops: Ops, device: torch.device) -> None:
    """Also a prompt whose scores are more than are computed at once."""
    length, heads = 560, 4
    whole, num_blocks = metadata([length], [length], device)
    caches = [poisoned_cache(whole, num_blocks, 2, torch.float32) for _ in range(2)]
    query = torch.randn(length, heads, HEAD_DIM, device=device)
    want = ops.paged_attention(query, *laid_out(ops, *caches), whole, SCALE).double()
    rows = [0, 1, 435, 436, 437, length - 1]
    starts = torch.tensor([0, 1, 16, 100, length])
    for start, end in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        chunk = AttentionMetadata(
            query_starts=torch.tensor([0, end - start], dtype=torch.int32, device=device),
            context_lens=torch.tensor([end], dtype=torch.int32, device=device),
            block_tables=whole.block_tables,
            slot_mapping=whole.slot_mapping[start:end],
            max_query_len=end - start,
            max_context_len=end,
        )
        part = ops.paged_attention(query[start:end], *laid_out(ops, *caches), chunk, SCALE)
        assert_rounded_once(part, want[start:end])
    for row in rows:
        one, _ = metadata([1], [row + 1], device)
        alone = AttentionMetadata(one.query_starts, one.context_lens, whole.block_tables, one.slot_mapping, 1, row + 1)
        assert_rounded_once(want[row : row + 1].float(), by_hand(query[row : row + 1], *caches, alone))


def test_large_scores_do_not_overflow(ops: Ops, device: torch.device) -> None:
    meta, num_blocks = metadata([5], [40], device)
    caches = [poisoned_cache(meta, num_blocks, 1, torch.float32) for _ in range(2)]
    query = torch.randn(5, 2, HEAD_DIM, device=device) * 1000
    got = ops.paged_attention(query, *laid_out(ops, *caches), meta, SCALE)
    assert_rounded_once(got, by_hand(query, *caches, meta), slack=2e-4)


def test_no_sequences(ops: Ops, device: torch.device) -> None:
    empty = torch.zeros(0, dtype=torch.int32, device=device)
    meta = AttentionMetadata(empty.new_zeros(1), empty, empty.view(0, 0), empty, 0, 0)
    cache = torch.zeros(2, 1, BLOCK, HEAD_DIM, device=device)
    assert ops.paged_attention(torch.zeros(0, 2, HEAD_DIM, device=device), cache, cache, meta, SCALE).shape[0] == 0


def test_heads_that_cannot_share_are_refused(ops: Ops, device: torch.device) -> None:
    meta, num_blocks = metadata([1], [1], device)
    cache = torch.zeros(num_blocks, 2, BLOCK, HEAD_DIM, device=device)
    with pytest.raises(ValueError, match="3 query heads"):
        ops.paged_attention(torch.zeros(1, 3, HEAD_DIM, device=device), cache, cache, meta, SCALE)
