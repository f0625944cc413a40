"""Causal attention over the paged cache: decode rows in parallel over splits of their keys, prefill
rows a tile at a time.

A sequence with one query row is decoded: each split of its keys is an item of its own, whose
results a second kernel folds. Of any other sequence a tile of query rows is an item, which folds
its splits itself. All heads that share a key-value head are rows of one product. Grids have a fixed
size; the work is read from the metadata on the device, so nothing waits for the host and a CUDA
graph stays valid when the batch changes. Both kernels take their arithmetic from `softmax`.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.interface import AttentionMetadata, check_shape
from ops.kernels.device import capability, check_float8, num_processors
from ops.kernels.softmax import SPLIT, attend_split, combine

HEAD_DIMS = (16, 32, 64, 128)
TENSOR_CORE_ROWS = 64  # the width of Hopper's tensor cores
LEAST_SEQUENCES = 128  # that a program reads at once, one per thread: fewer would need another compilation
ALL_REGISTERS = {"maxnreg": 255}  # otherwise ptxas spills a few registers to run more programs at once
MOST_KEPT = tl.constexpr(512)  # sequences whose items are counted once: more would not fit into registers


@triton.jit(do_not_specialize=["num_sequences", "table_width", "max_splits"])
def decode_kernel(
    query,  # [T, H, HEAD_DIM]
    keys,
    values,
    output,
    split_largest,  # [S, max_splits, H] float32
    split_total,
    split_acc,  # [S, max_splits, H, HEAD_DIM] float32
    query_starts,
    context_lens,
    block_tables,
    num_sequences,
    table_width,
    max_splits,
    log2_scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads that share a key-value head
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    SEQUENCES: tl.constexpr,  # num_sequences, rounded up to a power of two
    FLOAT8: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """An item is a split of a sequence's keys, for one key-value head. A sequence of one split is
    finished here.
    """
    ends = _decode_ends(query_starts, context_lens, num_sequences, SEQUENCES)
    num_items = tl.max(ends, 0) * KV_HEADS
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    is_head = rows < GROUP
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        head = item % KV_HEADS
        if SEQUENCES > MOST_KEPT:
            sequence, split = _find(
                _decode_ends(query_starts, context_lens, num_sequences, SEQUENCES), item // KV_HEADS
            )
        else:
            sequence, split = _find(ends, item // KV_HEADS)
        token = tl.load(query_starts + sequence).to(tl.int64)
        length = tl.load(context_lens + sequence)
        cells = (token * KV_HEADS * GROUP + head * GROUP + rows)[:, None] * HEAD_DIM + dims[None, :]
        tile = tl.load(query + cells, mask=is_head[:, None], other=0.0)
        if FLOAT8:
            tile = tile.to(tl.float16)
        first = split * SPLIT
        end = tl.minimum(first + SPLIT, length)
        largest, total, acc = attend_split(
            tile,
            keys + head * BLOCK_SIZE * HEAD_DIM,
            values + head * BLOCK_SIZE * HEAD_DIM,
            block_tables + sequence.to(tl.int64) * table_width,
            first,
            first + (end - first) // TILE * TILE,
            end,
            tl.zeros([ROWS], tl.int32) + (length - 1),
            log2_scale,
            KV_HEADS,
            HEAD_DIM,
            BLOCK_SIZE,
            TILE,
            STAGES,
        )
        if length <= SPLIT:
            tl.store(output + cells, (acc / total[:, None]).to(output.dtype.element_ty), mask=is_head[:, None])
        else:
            slots = (sequence.to(tl.int64) * max_splits + split) * KV_HEADS * GROUP + head * GROUP + rows
            tl.store(split_largest + slots, largest, mask=is_head)
            tl.store(split_total + slots, total, mask=is_head)
            tl.store(split_acc + slots[:, None] * HEAD_DIM + dims[None, :], acc, mask=is_head[:, None])


@triton.jit(do_not_specialize=["max_splits"])
def fold_kernel(
    split_largest,
    split_total,
    split_acc,
    output,
    query_starts,
    context_lens,
    max_splits,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,  # GROUP, rounded up to a power of two
):
    """Grid (S, KV_HEADS): folds the splits of a decoded sequence in their order."""
    sequence = tl.program_id(0)
    token = tl.load(query_starts + sequence)
    length = tl.load(context_lens + sequence)
    if (tl.load(query_starts + sequence + 1) - token != 1) | (length <= SPLIT):
        return
    rows = tl.arange(0, ROWS)
    is_head = rows < GROUP
    heads = tl.program_id(1) * GROUP + rows
    dims = tl.arange(0, HEAD_DIM)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for split in tl.range(0, tl.cdiv(length, SPLIT), loop_unroll_factor=4):
        slots = (sequence.to(tl.int64) * max_splits + split) * KV_HEADS * GROUP + heads
        largest, total, acc = combine(
            largest,
            total,
            acc,
            tl.load(split_largest + slots, mask=is_head, other=0.0),
            tl.load(split_total + slots, mask=is_head, other=1.0),
            tl.load(split_acc + slots[:, None] * HEAD_DIM + dims[None, :], mask=is_head[:, None], other=0.0),
        )
    cells = (token.to(tl.int64) * KV_HEADS * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(output + cells, (acc / total[:, None]).to(output.dtype.element_ty), mask=is_head[:, None])


@triton.jit(do_not_specialize=["num_sequences", "table_width"])
def prefill_kernel(
    query,
    keys,
    values,
    output,
    query_starts,
    context_lens,
    block_tables,
    num_sequences,
    table_width,
    log2_scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    SEQUENCES: tl.constexpr,
    FLOAT8: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """An item is ROWS // GROUP tokens of a sequence, for one key-value head; the last tokens'
    first: they see the most keys.
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    ends = _prefill_ends(query_starts, num_sequences, SEQUENCES, TOKENS)
    num_tiles = tl.max(ends, 0)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    for item in range(tl.program_id(0), num_tiles * KV_HEADS, tl.num_programs(0)):
        head = item % KV_HEADS
        if SEQUENCES > MOST_KEPT:
            sequence, tile_id = _find(
                _prefill_ends(query_starts, num_sequences, SEQUENCES, TOKENS), num_tiles - 1 - item // KV_HEADS
            )
        else:
            sequence, tile_id = _find(ends, num_tiles - 1 - item // KV_HEADS)
        begin = tl.load(query_starts + sequence)
        query_len = tl.load(query_starts + sequence + 1) - begin
        past = tl.load(context_lens + sequence) - query_len
        tokens = tile_id * TOKENS + rows // GROUP
        is_row = (rows < TOKENS * GROUP) & (tokens < query_len)
        first_cell = ((begin + tile_id * TOKENS).to(tl.int64) * KV_HEADS + head) * GROUP * HEAD_DIM
        cells = (rows // GROUP * (KV_HEADS * GROUP) + rows % GROUP)[:, None] * HEAD_DIM + dims[None, :]
        tile = tl.load(query + first_cell + cells, mask=is_row[:, None], other=0.0)
        if FLOAT8:
            tile = tile.to(tl.float16)
        end = past + tl.minimum((tile_id + 1) * TOKENS, query_len)
        all_see = (past + tile_id * TOKENS + 1) // TILE * TILE
        largest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
        for first in range(0, end, SPLIT):
            split_end = tl.minimum(first + SPLIT, end)
            next_largest, next_total, next_acc = attend_split(
                tile,
                keys + head * BLOCK_SIZE * HEAD_DIM,
                values + head * BLOCK_SIZE * HEAD_DIM,
                block_tables + sequence.to(tl.int64) * table_width,
                first,
                tl.minimum(tl.maximum(all_see, first), split_end),
                split_end,
                past + tokens,
                log2_scale,
                KV_HEADS,
                HEAD_DIM,
                BLOCK_SIZE,
                TILE,
                STAGES,
            )
            largest, total, acc = combine(largest, total, acc, next_largest, next_total, next_acc)
        tl.store(
            output + (first_cell + cells), (acc / total[:, None]).to(output.dtype.element_ty), mask=is_row[:, None]
        )


@triton.jit
def _decode_ends(query_starts, context_lens, num_sequences, SEQUENCES: tl.constexpr):
    """The running number of items of decode, over sequences: [SEQUENCES]."""
    ids = tl.arange(0, SEQUENCES)
    lens = tl.load(context_lens + ids, mask=ids < num_sequences, other=0)
    return tl.cumsum(tl.where(_query_lens(query_starts, num_sequences, SEQUENCES) == 1, tl.cdiv(lens, SPLIT), 0), 0)


@triton.jit
def _prefill_ends(query_starts, num_sequences, SEQUENCES: tl.constexpr, TOKENS: tl.constexpr):
    """The running number of tiles of prefill, over sequences: [SEQUENCES]."""
    query_lens = _query_lens(query_starts, num_sequences, SEQUENCES)
    return tl.cumsum(tl.where(query_lens > 1, tl.cdiv(query_lens, TOKENS), 0), 0)


@triton.jit
def _query_lens(query_starts, num_sequences, SEQUENCES: tl.constexpr):
    """Each sequence's number of rows: [SEQUENCES], zeros at the end."""
    ids = tl.arange(0, SEQUENCES)
    exists = ids < num_sequences
    return tl.load(query_starts + ids + 1, mask=exists, other=0) - tl.load(query_starts + ids, mask=exists, other=0)


@triton.jit
def _find(ends, index):
    """Which sequence item `index` is of, and which of its items; `ends`: the running number of
    items.
    """
    is_before = ends <= index
    return tl.sum(is_before.to(tl.int32), 0), index - tl.max(tl.where(is_before, ends, 0), 0)


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """query [T, H, head_dim] dtype; caches [num_blocks, K, block_size, head_dim] dtype or
    float8_e4m3fn -> as query.

    head_dim is one of HEAD_DIMS. A float8 cache is read as float16.
    """
    _check(query, key_cache, value_cache, metadata)
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    num_rows, num_heads, _ = query.shape
    num_sequences = metadata.context_lens.shape[0]
    output = torch.empty_like(query)
    if num_rows == 0:
        return output
    group = num_heads // num_kv_heads
    constants = {
        "KV_HEADS": num_kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "SEQUENCES": max(LEAST_SEQUENCES, triton.next_power_of_2(num_sequences)),
        "FLOAT8": key_cache.dtype == torch.float8_e4m3fn,
    }
    options = decode_options(key_cache.dtype, head_dim, group, capability(query.device))
    tensors = metadata.query_starts, metadata.context_lens, metadata.block_tables
    sizes = num_sequences, metadata.block_tables.shape[1]
    log2_scale = scale * math.log2(math.e)
    if metadata.max_query_len > 1:
        prefill_kernel[(num_processors(query.device),)](
            query, key_cache, value_cache, output, *tensors, *sizes, log2_scale, **constants, **prefill_options(options)
        )
    max_splits = -(-metadata.max_context_len // SPLIT.value)
    splits = _split_buffers(query, num_sequences, max_splits)
    num_programs = num_processors(query.device) * (2 if head_dim > 64 else 4)
    decode_kernel[(num_programs,)](
        query, key_cache, value_cache, output, *splits, *tensors, *sizes, max_splits, log2_scale, **constants, **options
    )
    if max_splits > 1:
        rows = triton.next_power_of_2(group)
        fold_kernel[(num_sequences, num_kv_heads)](
            *splits, output, *tensors[:2], max_splits, num_kv_heads, group, head_dim, rows,
            num_warps=max(4, rows * head_dim // 1024),
        )  # fmt: skip
    return output


def _check(query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata) -> None:
    check_shape("key_cache", key_cache, (None, None, None, None))
    _, num_kv_heads, _, head_dim = key_cache.shape
    is_float8 = key_cache.dtype == torch.float8_e4m3fn
    check_shape("value_cache", value_cache, tuple(key_cache.shape), key_cache.dtype)
    check_shape("query", query, (None, None, head_dim), None if is_float8 else key_cache.dtype)
    num_heads, num_sequences = query.shape[1], metadata.context_lens.shape[0]
    check_shape("context_lens", metadata.context_lens, (num_sequences,), torch.int32)
    check_shape("query_starts", metadata.query_starts, (num_sequences + 1,), torch.int32)
    check_shape("block_tables", metadata.block_tables, (num_sequences, None), torch.int32)
    most = 16 if key_cache.dtype == torch.float32 and head_dim > 64 else TENSOR_CORE_ROWS  # without spills
    if num_heads % num_kv_heads or num_heads // num_kv_heads > most:
        raise ValueError(
            f"{num_heads} query heads cannot share {num_kv_heads} key-value heads, evenly and {most} at most"
        )
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim={head_dim} is not 16, 32, 64 or 128")
    if is_float8:
        check_float8(query.device)


def _split_buffers(query: Tensor, num_sequences: int, max_splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """For what a split gives: the largest score and the sum of weights [S, max_splits, H], the
    values [..., head_dim].
    """
    _, num_heads, head_dim = query.shape
    largest = query.new_empty((num_sequences, max_splits, num_heads), dtype=torch.float32)
    return largest, torch.empty_like(largest), query.new_empty((*largest.shape, head_dim), dtype=torch.float32)


def decode_options(dtype: torch.dtype, head_dim: int, group: int, compute: tuple[int, int]) -> dict[str, int]:
    """Rows of a product, keys a tile, tiles under way, warps: the largest that need no more
    registers than there are.

    dtype: the cache's. compute: the device's capability.
    """
    if dtype == torch.float32:
        rows = max(16, triton.next_power_of_2(group))
        return {"ROWS": rows, "TILE": 16, "STAGES": 1, "num_warps": 4, **ALL_REGISTERS}
    options = {"ROWS": TENSOR_CORE_ROWS, "num_warps": 4}
    if compute >= (9, 0):
        return options | {"TILE": 32 if dtype == torch.float8_e4m3fn and head_dim > 64 else 64, "STAGES": 3}
    if head_dim <= 64:
        return options | {"TILE": 32, "STAGES": 3}
    return options | {"TILE": 16, "STAGES": 2, **ALL_REGISTERS}


def prefill_options(decode: dict[str, int]) -> dict[str, int]:
    """As for decode, with twice the rows and warps: a warp has as many rows as there, so no bit
    changes.
    """
    return decode | {"ROWS": 2 * decode["ROWS"], "num_warps": 2 * decode["num_warps"]}
