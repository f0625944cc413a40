"""Pieces of the kernels that go over rows of logits: chunks, an order of floats, sums in the order
of the specification.
"""

import triton
import triton.language as tl

from ops.kernels.chain import begin

MAX_CHUNK = 4096  # logits a program takes at once
BLOCK = tl.constexpr(64)  # masses whose sum is taken in halves


@triton.jit
def ordered(logits):
    """float32 as int32 in the same order; the two zeros are one."""
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def block_sums(masses, CHUNK: tl.constexpr):
    """[CHUNK] -> [CHUNK / 64]: each block's sum in halves (32 + 32, 16 + 16, ...), float32."""
    parts = tl.sum(tl.reshape(masses, [CHUNK // BLOCK, 2, 32]), 1)
    parts = tl.sum(tl.reshape(parts, [CHUNK // BLOCK, 2, 16]), 1)
    parts = tl.sum(tl.reshape(parts, [CHUNK // BLOCK, 2, 8]), 1)
    parts = tl.sum(tl.reshape(parts, [CHUNK // BLOCK, 2, 4]), 1)
    parts = tl.sum(tl.reshape(parts, [CHUNK // BLOCK, 2, 2]), 1)
    return tl.sum(parts, 1)


@triton.jit
def largest_kernel(
    logits,
    chunk_largest,
    chunk_ids,
    block_largest,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (R, chunks): a chunk's largest logit and the lowest id that has it; inf and -1 if it has
    a NaN, so that a row whose largest is finite has none. Each block's largest, too, unless
    block_largest is None.
    """
    begin(CHAINED)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * VOCAB + ids, mask=ids < VOCAB, other=float("-inf"))
    largest = tl.max(values, 0)
    first = tl.min(tl.where(values != values, -1, tl.where(values == largest, ids, VOCAB)), 0)
    slot = row * tl.num_programs(1) + chunk
    tl.store(chunk_largest + slot, tl.where(first < 0, float("inf"), largest))
    tl.store(chunk_ids + slot, first)
    if block_largest is not None:
        blocks = tl.arange(0, CHUNK // BLOCK)
        tl.store(
            block_largest + slot * (CHUNK // BLOCK) + blocks, tl.max(tl.reshape(values, [CHUNK // BLOCK, BLOCK]), 1)
        )


@triton.jit
def row_largest(chunk_largest, row, NUM_CHUNKS: tl.constexpr, CHUNKS: tl.constexpr):
    """Of a row's chunks, [CHUNKS] (a power of two), and of the row."""
    chunks = tl.arange(0, CHUNKS)
    parts = tl.load(chunk_largest + row * NUM_CHUNKS + chunks, mask=chunks < NUM_CHUNKS, other=float("-inf"))
    return parts, tl.max(parts, 0)


@triton.jit
def running_sums(sums, row, NUM_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr):
    """The mass up to the end of each block, [BLOCKS] float64, and the whole."""
    blocks = tl.arange(0, BLOCKS)
    parts = tl.load(sums + row * NUM_BLOCKS + blocks, mask=blocks < NUM_BLOCKS, other=0.0).to(tl.float64)
    filled = tl.cumsum(parts, 0)
    return filled, tl.max(filled, 0)


def chunk_size(vocab_size: int) -> int:
    """Logits that a program takes at once: a power of two, a block at least."""
    return int(min(MAX_CHUNK, max(BLOCK.value, triton.next_power_of_2(vocab_size))))
