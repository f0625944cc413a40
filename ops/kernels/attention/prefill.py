"""Attention of sequences with several query rows: a tile of rows is an item, which goes through the
splits of its keys in order.
"""

import triton
import triton.language as tl

from ops.kernels.attention.decode import FOUR_PROGRAMS
from ops.kernels.attention.items import MOST_KEPT, find, query_lens
from ops.kernels.attention.softmax import SPLIT, attend_split, combine


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
            sequence, tile_id = find(
                _prefill_ends(query_starts, num_sequences, SEQUENCES, TOKENS), num_tiles - 1 - item // KV_HEADS
            )
        else:
            sequence, tile_id = find(ends, num_tiles - 1 - item // KV_HEADS)
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
def _prefill_ends(query_starts, num_sequences, SEQUENCES: tl.constexpr, TOKENS: tl.constexpr):
    """The running number of tiles of prefill, over sequences: [SEQUENCES]."""
    lens = query_lens(query_starts, num_sequences, SEQUENCES)
    return tl.cumsum(tl.where(lens > 1, tl.cdiv(lens, TOKENS), 0), 0)


def prefill_options(decode: dict[str, int]) -> dict[str, int]:
    """As for decode, with twice the rows and warps: a warp has as many rows as there, so no bit
    changes.
    """
    options = decode | {"ROWS": 2 * decode["ROWS"], "num_warps": 2 * decode["num_warps"]}
    if options.get("maxnreg") == FOUR_PROGRAMS["maxnreg"]:  # here a processor runs one
        del options["maxnreg"]
    return options
