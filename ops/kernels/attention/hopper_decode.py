"""Decode on H100 and H200, in Gluon (Triton's lower language): the same sums in the same order as
`decode_kernel`, so the same bits.

A program is one warp. It multiplies 16 rows at a time (`mma.sync` gives the bits of the wider
products), and so has registers and shared memory for three programs and more on a processor. While
it multiplies a tile of keys, the next one is copied, across the ends of its items.
"""

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from ops.kernels.attention import softmax

SPLIT = gl.constexpr(softmax.SPLIT.value)
TILE = 64  # keys, as in decode_options
STAGES = 2  # tiles that a program has room for
SHARED = 192 << 10  # bytes of a processor's that programs take for tiles
MOST_SEQUENCES = 256  # whose items are counted once: more would not fit into registers
BLOCK_SIZE = 16
HEAD_DIMS = (64, 128)
ROWS = gl.constexpr(16)
PRODUCT = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, PRODUCT, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, PRODUCT, 2))
OF_ROWS = gl.constexpr(gl.SliceLayout(1, PRODUCT))


@gluon.constexpr_function
def copy_layout(row_bytes: int) -> Any:
    """16 bytes a thread."""
    lanes = row_bytes // 16
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [1, 1], [1, 0])


@gluon.constexpr_function
def shared_layout(row_bytes: int) -> Any:
    """Without bank conflicts when eight rows are read at once."""
    return gl.SwizzledSharedLayout(8, max(1, 128 // row_bytes), min(8, row_bytes // 16), [1, 0])


@gluon.constexpr_function
def query_layout(dim: int, is_float8: bool) -> Any:
    """Of float8 keys, a thread has four neighbouring dims of each 16: those of a product are the
    same, in another order, and its sum is exact in any.
    """
    if not is_float8:
        return LEFT
    more = [[0, first] for first in (16, 32, 64) if first < dim]
    lanes = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], [8, 0], *more], lanes, [], [], [16, dim])


@gluon.jit
def add(first, second):
    return first + second


@gluon.jit
def begin():
    """As `chain.begin`."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.u32 $0, 0;",
        "=r",
        [],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def find(ends, index):
    """As `items.find`."""
    is_before = ends <= index
    return gl.sum(is_before.to(gl.int32), 0), index - gl.max(gl.where(is_before, ends, 0), 0)


@gluon.jit
def ends_of(query_starts, context_lens, num_sequences, SEQUENCES: gl.constexpr):
    """The running number of splits of decoded sequences."""
    layout: gl.constexpr = gl.BlockedLayout([SEQUENCES // 32], [32], [1], [0])
    ids = gl.arange(0, SEQUENCES, layout=layout)
    exists = ids < num_sequences
    lens = gl.load(context_lens + ids, mask=exists, other=0)
    rows = gl.load(query_starts + ids + 1, mask=exists, other=0) - gl.load(query_starts + ids, mask=exists, other=0)
    return gl.associative_scan(gl.where(rows == 1, (lens + SPLIT - 1) // SPLIT, 0), 0, add)


@gluon.jit
def item_of(ends, item, num_items, context_lens, num_sequences, KV_HEADS: gl.constexpr):
    """Sequence, first key, the key after the last one (the first one, where there is no such item),
    length, head.
    """
    sequence, split = find(ends, item // KV_HEADS)
    sequence = gl.minimum(sequence, num_sequences - 1)
    length = gl.load(context_lens + sequence)
    first = split * SPLIT
    end = gl.where(item < num_items, gl.minimum(first + SPLIT, length), first)
    return sequence, first, end, length, item % KV_HEADS


@gluon.jit
def copy_tile(
    keys, values, slot_keys, slot_values, table, start, end, head,
    KV_HEADS: gl.constexpr, WIDTH: gl.constexpr, BLOCK_SIZE: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Begins the copy of keys start:start + TILE; those from `end` on become zeros."""
    layout: gl.constexpr = copy_layout(2 * WIDTH)
    rows = gl.arange(0, BLOCK_SIZE, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    cells = rows[:, None] * WIDTH + columns[None, :]
    for page in gl.static_range(TILE // BLOCK_SIZE):
        first = start + page * BLOCK_SIZE
        block = gl.load(table + first // BLOCK_SIZE, mask=first < end, other=0).to(gl.int64)
        base = (block * KV_HEADS + head) * (BLOCK_SIZE * WIDTH)
        exists = (rows < end - first)[:, None] & (columns < WIDTH)[None, :]
        page_keys = slot_keys.slice(page * BLOCK_SIZE, BLOCK_SIZE, 0)
        async_copy.async_copy_global_to_shared(page_keys, keys + base + cells, mask=exists)
        page_values = slot_values.slice(page * BLOCK_SIZE, BLOCK_SIZE, 0)
        async_copy.async_copy_global_to_shared(page_values, values + base + cells, mask=exists)


@gluon.jit
def halves(pairs):
    """int16 that are two e4m3 each -> float16: the first, the second."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 t; cvt.rn.f16x2.e4m3x2 t, $2; mov.b32 {$0, $1}, t; }",
        "=h,=h,h",
        [pairs],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=1,
    )


@gluon.jit
def halves_of_two(pairs):
    """As `halves`, two of them at once."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 t; .reg .b16 l, h; prmt.b32 t, $2, 0, 0x3120; mov.b32 {l, h}, t;"
        " cvt.rn.f16x2.e4m3x2 $0, l; cvt.rn.f16x2.e4m3x2 $1, h; }",
        "=r,=r,r",
        [pairs],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def load_query(query, first_cell, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, FLOAT8: gl.constexpr):
    layout: gl.constexpr = query_layout(HEAD_DIM, FLOAT8)
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    dims = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, layout))
    exists = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    tile = gl.load(query + first_cell + rows[:, None] * HEAD_DIM + dims[None, :], mask=exists, other=0.0)
    if FLOAT8:
        runs = tile.to(gl.float16).reshape([ROWS, HEAD_DIM // 16, 4, 2, 2])
        tile = runs.permute([0, 1, 3, 2, 4]).reshape([ROWS, HEAD_DIM])
        tile = gl.convert_layout(tile, LEFT, assert_trivial=True)
    return tile


@gluon.jit
def scores_of(tile, slot, FLOAT8: gl.constexpr, HEAD_DIM: gl.constexpr, TILE: gl.constexpr):
    zeros = gl.zeros([ROWS, TILE], gl.float32, PRODUCT)
    keys = slot.permute([1, 0]).load(RIGHT)
    if FLOAT8:
        first, second = halves(keys)
        runs = gl.join(first, second).reshape([HEAD_DIM // 16, 4, 2, TILE, 2])
        keys = runs.permute([0, 2, 1, 4, 3]).reshape([HEAD_DIM, TILE])
        keys = gl.convert_layout(keys, RIGHT, assert_trivial=True)
    return mma_v2(tile, keys, zeros)


@gluon.jit(do_not_specialize=["num_sequences", "table_width", "max_splits"])
def hopper_decode_kernel(
    query, keys, values, output, split_largest, split_total, split_acc, query_starts, context_lens, block_tables,
    num_sequences, table_width, max_splits, log2_scale,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    SEQUENCES: gl.constexpr, FLOAT8: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, CHAINED: gl.constexpr,
):  # fmt: skip
    """As `decode_kernel`, without arrivals. A float8 cache is passed as int16, two numbers each:
    sums of even and of odd dims are apart until they are stored.
    """
    if CHAINED:
        begin()
    WIDTH: gl.constexpr = HEAD_DIM // 2 if FLOAT8 else HEAD_DIM
    SHARED: gl.constexpr = shared_layout(2 * WIDTH)
    OF_TILE: gl.constexpr = gl.float16 if FLOAT8 else query.dtype.element_ty
    shared_keys = gl.allocate_shared_memory(keys.dtype.element_ty, [STAGES, TILE, WIDTH], SHARED)
    shared_values = gl.allocate_shared_memory(keys.dtype.element_ty, [STAGES, TILE, WIDTH], SHARED)
    ends = ends_of(query_starts, context_lens, num_sequences, SEQUENCES)
    num_items = gl.max(ends, 0) * KV_HEADS

    asked = gl.program_id(0)  # the item whose tiles are copied, and where its next one begins
    at, ask, ask_end, _, ask_head = item_of(ends, asked, num_items, context_lens, num_sequences, KV_HEADS)
    if ask < ask_end:
        copy_tile(
            keys, values, shared_keys.index(0), shared_values.index(0), block_tables + at.to(gl.int64) * table_width,
            ask, ask_end, ask_head, KV_HEADS, WIDTH, BLOCK_SIZE, TILE,
        )  # fmt: skip
    ask += TILE
    async_copy.commit_group()
    slot = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        sequence, first, end, length, head = item_of(ends, item, num_items, context_lens, num_sequences, KV_HEADS)
        token = gl.load(query_starts + sequence).to(gl.int64)
        tile = load_query(query, (token * KV_HEADS + head) * GROUP * HEAD_DIM, GROUP, HEAD_DIM, FLOAT8)
        largest = gl.full([ROWS], float("-inf"), gl.float32, OF_ROWS)
        total = gl.zeros([ROWS], gl.float32, OF_ROWS)
        acc = gl.zeros([ROWS, WIDTH], gl.float32, PRODUCT)
        odd_acc = acc  # of float8
        for start in range(first, end, TILE):
            if (ask >= ask_end) & (asked < num_items):
                asked += gl.num_programs(0)
                at, ask, ask_end, _, ask_head = item_of(ends, asked, num_items, context_lens, num_sequences, KV_HEADS)
            if ask < ask_end:
                other = (slot + STAGES - 1) % STAGES
                copy_tile(
                    keys, values, shared_keys.index(other), shared_values.index(other),
                    block_tables + at.to(gl.int64) * table_width,
                    ask, ask_end, ask_head, KV_HEADS, WIDTH, BLOCK_SIZE, TILE,
                )  # fmt: skip
            ask += TILE
            async_copy.commit_group()
            async_copy.wait_group(STAGES - 1)
            scores = scores_of(tile, shared_keys.index(slot), FLOAT8, HEAD_DIM, TILE)
            if end - start < TILE:
                key_ids = start + gl.arange(0, TILE, layout=gl.SliceLayout(0, PRODUCT))
                scores = gl.where((key_ids < end)[None, :], scores, float("-inf"))
            new_largest = gl.maximum(largest, gl.max(scores, 1) * log2_scale)
            weights = gl.exp2(gl.fma(scores, gl.to_tensor(log2_scale), -new_largest[:, None]))
            kept = gl.exp2(largest - new_largest)
            total = gl.fma(total, kept, gl.sum(weights, 1))
            largest = new_largest
            factor = gl.convert_layout(weights.to(OF_TILE), LEFT)
            if FLOAT8:
                even, odd = halves_of_two(shared_values.index(slot).load(RIGHT))
                acc = mma_v2(factor, even, acc * kept[:, None])
                odd_acc = mma_v2(factor, odd, odd_acc * kept[:, None])
            else:
                acc = mma_v2(factor, shared_values.index(slot).load(RIGHT), acc * kept[:, None])
            slot = (slot + 1) % STAGES
        rows = gl.arange(0, ROWS, layout=OF_ROWS)
        dims = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, PRODUCT)) * (HEAD_DIM // WIDTH)
        exists = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
        if length <= SPLIT:
            out = output + ((token * KV_HEADS + head) * GROUP + rows)[:, None] * HEAD_DIM + dims[None, :]
            gl.store(out, (acc / total[:, None]).to(output.dtype.element_ty), mask=exists)
            if FLOAT8:
                gl.store(out + 1, (odd_acc / total[:, None]).to(output.dtype.element_ty), mask=exists)
        else:
            slots = (sequence.to(gl.int64) * max_splits + first // SPLIT) * KV_HEADS * GROUP + head * GROUP + rows
            gl.store(split_largest + slots, largest, mask=rows < GROUP)
            gl.store(split_total + slots, total, mask=rows < GROUP)
            cells = split_acc + slots[:, None] * HEAD_DIM + dims[None, :]
            gl.store(cells, acc, mask=exists)
            if FLOAT8:
                gl.store(cells + 1, odd_acc, mask=exists)
    async_copy.wait_group(0)


def fits(dtype: torch.dtype, head_dim: int, group: int, block_size: int, num_sequences: int) -> bool:
    """Whether the kernel is for such a cache and batch."""
    fits_shape = head_dim in HEAD_DIMS and group <= ROWS.value and block_size == BLOCK_SIZE
    return dtype != torch.float32 and fits_shape and num_sequences <= MOST_SEQUENCES


def launch_decode(
    num_processors: int, most_items: int, query: Tensor, keys: Tensor, values: Tensor, *arguments: Any, **options: Any
) -> None:
    """arguments, options: of the kernel, behind the cache and TILE."""
    width = keys.shape[-1] * keys.element_size()
    resident = SHARED // (2 * STAGES * TILE * width)
    if keys.dtype == torch.float8_e4m3fn:
        keys, values = keys.view(torch.int16), values.view(torch.int16)
    hopper_decode_kernel[(min(num_processors * resident, most_items),)](
        query, keys, values, *arguments, TILE=TILE, STAGES=STAGES, num_warps=1, **options
    )
