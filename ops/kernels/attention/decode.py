"""Attention of sequences with one query row: each split of their keys is an item, in parallel. The
results of a sequence's splits are folded in their order, by the program whose split is done last or
by a second kernel.
"""

import torch
import triton
import triton.language as tl

from ops.kernels.attention.items import MOST_KEPT, find, query_lens
from ops.kernels.attention.softmax import SPLIT, attend_split, combine
from ops.kernels.chain import begin
from ops.kernels.device import HOPPER, RTX_50

UNROLLED = tl.constexpr(8)  # splits whose results are asked for at once
TENSOR_CORE_ROWS = 64  # the width of Hopper's tensor cores
WHOLE_TILES = (9, 10)  # capabilities whose tensor cores read both factors from shared memory, which is 227 KiB there
FOUR_PROGRAMS = {"maxnreg": 128}  # of 128 threads a processor has registers for four
LEAN = {(64, 7, 2)}  # head size, heads to a key-value head, those: were seen to need no more; others spill a few
ALL_REGISTERS = {"maxnreg": 255}  # otherwise ptxas spills a few registers to run more programs at once


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
    arrivals,  # [>= S, KV_HEADS] int32, zeros, which they are again at the end; None: nothing is folded here
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
    FOLDED: tl.constexpr,  # GROUP, rounded up to a power of two
    FLOAT8: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """An item is a split of a sequence's keys, for one key-value head. A sequence of one split is
    finished here; others are where there are `arrivals`, which count the splits that are done.
    """
    begin(CHAINED)
    ends = _decode_ends(query_starts, context_lens, num_sequences, SEQUENCES)
    num_items = tl.max(ends, 0) * KV_HEADS
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    is_head = rows < GROUP
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        head = item % KV_HEADS
        if SEQUENCES > MOST_KEPT:
            sequence, split = find(_decode_ends(query_starts, context_lens, num_sequences, SEQUENCES), item // KV_HEADS)
        else:
            sequence, split = find(ends, item // KV_HEADS)
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
            if arrivals is not None:
                arrival = arrivals + sequence * KV_HEADS + head
                tl.debug_barrier()  # all that this program's threads have stored is released by one of them
                if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == tl.cdiv(length, SPLIT) - 1:
                    tl.store(arrival, 0)
                    heads = head * GROUP + tl.arange(0, FOLDED)
                    _fold(
                        split_largest, split_total, split_acc, output, sequence.to(tl.int64) * max_splits, length,
                        token, heads, tl.arange(0, FOLDED) < GROUP, KV_HEADS * GROUP, HEAD_DIM,
                    )  # fmt: skip


@triton.jit
def _fold(
    split_largest, split_total, split_acc, output, first, length, token, heads, exists,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Folds the splits of a decoded sequence in their order, for `heads`; `first`: where its splits
    are. They are read past the cache of this processor, which need not know what others have
    written.
    """
    dims = tl.arange(0, HEAD_DIM)[None, :]
    largest = tl.full([heads.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([heads.shape[0]], tl.float32)
    acc = tl.zeros([heads.shape[0], HEAD_DIM], tl.float32)
    for split in tl.range(0, tl.cdiv(length, SPLIT), loop_unroll_factor=UNROLLED):
        slots = (first + split) * HEADS + heads
        cells = slots[:, None] * HEAD_DIM + dims
        largest, total, acc = combine(
            largest,
            total,
            acc,
            tl.load(split_largest + slots, mask=exists, other=0.0, cache_modifier=".cg"),
            tl.load(split_total + slots, mask=exists, other=1.0, cache_modifier=".cg"),
            tl.load(split_acc + cells, mask=exists[:, None], other=0.0, cache_modifier=".cg"),
        )
    cells = (token * HEADS + heads)[:, None] * HEAD_DIM + dims
    tl.store(output + cells, (acc / total[:, None]).to(output.dtype.element_ty), mask=exists[:, None])


@triton.jit
def _decode_ends(query_starts, context_lens, num_sequences, SEQUENCES: tl.constexpr):
    """The running number of items of decode, over sequences: [SEQUENCES]."""
    ids = tl.arange(0, SEQUENCES)
    lens = tl.load(context_lens + ids, mask=ids < num_sequences, other=0)
    return tl.cumsum(tl.where(query_lens(query_starts, num_sequences, SEQUENCES) == 1, tl.cdiv(lens, SPLIT), 0), 0)


@triton.jit(do_not_specialize=["max_splits"])
def fold_kernel(
    split_largest,
    split_total,
    split_acc,
    output,
    query_starts,
    context_lens,
    max_splits,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (S, HEADS)."""
    begin(CHAINED)
    sequence = tl.program_id(0)
    token = tl.load(query_starts + sequence)
    length = tl.load(context_lens + sequence)
    if (tl.load(query_starts + sequence + 1) - token != 1) | (length <= SPLIT):
        return
    head = tl.program_id(1) + tl.arange(0, 1)
    _fold(
        split_largest, split_total, split_acc, output, sequence.to(tl.int64) * max_splits, length, token.to(tl.int64),
        head, head < HEADS, HEADS, HEAD_DIM,
    )  # fmt: skip


def decode_options(
    dtype: torch.dtype,
    head_dim: int,
    group: int,
    compute: tuple[int, int],
    num_kv_heads: int,
    num_sequences: int,
    *,
    folds: bool = False,
) -> dict[str, int]:
    """Rows of a product, keys a tile, tiles under way, warps: the largest that need no more
    registers than there are.

    dtype: the cache's. compute: the device's capability. folds: splits are folded by the same
    kernel, which needs more registers.
    """
    if dtype == torch.float32:
        rows = max(16, triton.next_power_of_2(group))
        return {"ROWS": rows, "TILE": 16, "STAGES": 1, "num_warps": 4, **ALL_REGISTERS}
    options = {"ROWS": TENSOR_CORE_ROWS, "num_warps": 4}
    if compute[0] in WHOLE_TILES:
        is_float8 = dtype == torch.float8_e4m3fn
        options |= {"TILE": 32 if is_float8 and head_dim > 64 and compute[0] != HOPPER else 64, "STAGES": 3}
        is_lean = (head_dim, group, num_kv_heads) in LEAN and not is_float8
        fits = is_lean and not folds and num_sequences <= MOST_KEPT.value and compute[0] == HOPPER
        return options | FOUR_PROGRAMS if fits else options
    if head_dim <= 64:
        return options | {"TILE": 32, "STAGES": 3} | (ALL_REGISTERS if folds or compute[0] == RTX_50 else {})
    return options | {"TILE": 16, "STAGES": 1 if compute[0] == RTX_50 else 2, **ALL_REGISTERS}


def programs_of_a_processor(head_dim: int) -> int:
    """That decode launches for each of the device's processors."""
    return 2 if head_dim > 64 else 4
