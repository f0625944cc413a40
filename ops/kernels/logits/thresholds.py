"""What top_k and top_p keep of a row: the k-th largest logit, and the mass down to which top_p is
filled.

A threshold is found digit by digit in an order-preserving integer: each pass counts, or adds up,
what lies above three candidates, and so settles two bits. Passes go over those of the row's blocks
of 64 tokens that the threshold can be in; mostly they are so few that a program holds their values
in registers.
"""

import triton
import triton.language as tl

from ops.kernels.chain import begin
from ops.kernels.logits.rows import BLOCK, ordered, running_sums

LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def top_k_kernel(
    logits,
    top_k,
    block_largest,  # [R, NUM_CHUNKS * CHUNK / 64]
    kept,  # of the same shape, int32
    thresholds,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (R,): the k-th largest logit as `ordered`; the lowest number there is where all are
    kept.

    If k blocks have a logit of some size, so have k logits: only blocks with one of at least the
    k-th largest block's are read. That one's upper half says it well enough.
    """
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(top_k + row)
    if (count <= 0) | (count >= VOCAB):
        tl.store(thresholds + row, LOWEST)
        return
    row_blocks = row * (NUM_CHUNKS * CHUNK // BLOCK)
    blocks = tl.arange(0, BLOCKS)
    exists = blocks < (VOCAB + BLOCK - 1) // BLOCK
    largest = ordered(tl.load(block_largest + row_blocks + blocks, mask=exists, other=float("-inf")))
    largest = tl.where(exists, largest, LOWEST)
    bound = tl.full([], LOWEST, tl.int64)
    for digit in range(8):
        step = tl.full([], 1, tl.int64) << (30 - 2 * digit)
        first, second, third = _num_above(largest, bound, step)
        passed = (first >= count).to(tl.int64) + (second >= count) + (third >= count)
        bound += passed * step
    num_kept = _keep_blocks(kept + row_blocks, (largest >= bound.to(tl.int32)) & exists, BLOCKS)
    row_logits = logits + row * VOCAB
    likeliest = _kept_keys(row_logits, kept + row_blocks, 0, num_kept, VOCAB, CHUNK)
    found = tl.full([], LOWEST, tl.int64)
    for digit in range(16):
        step = tl.full([], 1, tl.int64) << (30 - 2 * digit)
        first, second, third = _num_above(likeliest, found, step)
        for start in range(CHUNK // BLOCK, num_kept, CHUNK // BLOCK):
            keys = _kept_keys(row_logits, kept + row_blocks, start, num_kept, VOCAB, CHUNK)
            more_first, more_second, more_third = _num_above(keys, found, step)
            first += more_first
            second += more_second
            third += more_third
        passed = (first >= count).to(tl.int64) + (second >= count) + (third >= count)
        found += passed * step
    tl.store(thresholds + row, found.to(tl.int32))


@triton.jit
def top_p_kernel(
    masses,
    sums,
    temperature,
    top_p,
    kept,  # as sums, int32
    smallest,  # [R] float32
    last_ids,  # [R] int32
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (R,): the smallest mass that is kept, and of the tokens with that very mass the last one
    that is.

    Tokens of less than an even share of what may be dropped are dropped, all of them: blocks whose
    whole mass is less (than half of that, for the sums are rounded) are not read.
    """
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    share = tl.load(top_p + row)
    if (share >= 1.0) | (tl.load(temperature + row) == 0.0):
        return
    NUM_BLOCKS: tl.constexpr = NUM_CHUNKS * CHUNK // BLOCK
    _, total = running_sums(sums, row, NUM_BLOCKS, BLOCKS)
    # Above 0, which no mass has to fill, and below what any other share comes to: of a share that
    # is no number but 0 in float32, the likeliest token is kept.
    target = tl.maximum(share.to(tl.float64) * total, 1e-300)
    blocks = tl.arange(0, BLOCKS)
    parts = tl.load(sums + row * NUM_BLOCKS + blocks, mask=blocks < NUM_BLOCKS, other=0.0)
    is_kept = (parts.to(tl.float64) >= (total - target) * (0.5 / (NUM_CHUNKS * CHUNK))) & (parts > 0.0)
    row_kept = kept + row * NUM_BLOCKS
    num_kept = _keep_blocks(row_kept, is_kept, BLOCKS)
    row_masses = masses + row * (NUM_CHUNKS * CHUNK)
    likeliest = _kept_masses(row_masses, row_kept, 0, num_kept, CHUNK)
    found = tl.full([], 0, tl.int32)
    for digit in range(15):  # masses are at most 1, whose bits are 30
        step = tl.full([], 1, tl.int32) << (28 - 2 * digit)
        first, second, third = _mass_above(likeliest, found, step)
        for start in range(CHUNK // BLOCK, num_kept, CHUNK // BLOCK):
            mass = _kept_masses(row_masses, row_kept, start, num_kept, CHUNK)
            more_first, more_second, more_third = _mass_above(mass, found, step)
            first += more_first
            second += more_second
            third += more_third
        passed = (first >= target).to(tl.int32) + (second >= target) + (third >= target)
        found += passed * step
    above = tl.full([], 0.0, tl.float64)
    for start in range(0, num_kept, CHUNK // BLOCK):
        mass = _kept_masses(row_masses, row_kept, start, num_kept, CHUNK)
        above += tl.sum(tl.where(mass.to(tl.int32, bitcast=True) > found, mass.to(tl.float64), 0.0), 0)
    threshold = found.to(tl.float32, bitcast=True)
    num_ties = tl.maximum(tl.ceil((target - above) / tl.maximum(threshold, 1e-45).to(tl.float64)), 1.0)
    last = tl.full([], NUM_CHUNKS * CHUNK, tl.int32)
    num_before = tl.full([], 0, tl.int32)
    for start in range(0, num_kept, CHUNK // BLOCK):
        ids, exists = _kept_ids(row_kept, start, num_kept, CHUNK)
        mass = tl.load(row_masses + ids, mask=exists, other=0.0)
        ties = ((mass.to(tl.int32, bitcast=True) == found) & exists).to(tl.int32)
        ranks = num_before + tl.cumsum(ties, 0)
        is_last = (ties == 1) & (ranks.to(tl.float64) == num_ties)
        last = tl.minimum(last, tl.min(tl.where(is_last, ids, NUM_CHUNKS * CHUNK), 0))
        num_before += tl.sum(ties, 0)
    tl.store(smallest + row, threshold)
    tl.store(last_ids + row, last)


@triton.jit
def _num_above(keys, found, step):
    """How many reach one, two and three steps above `found`: never one that is LOWEST."""
    first = tl.sum((keys >= (found + step).to(tl.int32)).to(tl.int32), 0)
    second = tl.sum((keys >= (found + 2 * step).to(tl.int32)).to(tl.int32), 0)
    third = tl.sum((keys >= (found + 3 * step).to(tl.int32)).to(tl.int32), 0)
    return first, second, third


@triton.jit
def _keep_blocks(kept, is_kept, BLOCKS: tl.constexpr):
    """Write the numbers of the blocks that are kept, in order; how many there are."""
    ranks = tl.cumsum(is_kept.to(tl.int32), 0)
    tl.store(kept + ranks - 1, tl.arange(0, BLOCKS), mask=is_kept)
    tl.debug_barrier()  # what one thread has written, others read
    return tl.max(ranks, 0)


@triton.jit
def _kept_ids(kept, start, num_kept, CHUNK: tl.constexpr):
    """The ids [CHUNK] of the kept blocks from `start` on, in order, and whether there are so many
    blocks.
    """
    cells = tl.arange(0, CHUNK)
    exists = start + cells // BLOCK < num_kept
    return tl.load(kept + start + cells // BLOCK, mask=exists, other=0) * BLOCK + cells % BLOCK, exists


@triton.jit
def _kept_keys(row_logits, kept, start, num_kept, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    """The logits [CHUNK] of the kept blocks from `start` on as `ordered`; LOWEST where there is
    none.
    """
    ids, exists = _kept_ids(kept, start, num_kept, CHUNK)
    exists &= ids < VOCAB
    return tl.where(exists, ordered(tl.load(row_logits + ids, mask=exists, other=0.0)), LOWEST)


@triton.jit
def _kept_masses(row_masses, kept, start, num_kept, CHUNK: tl.constexpr):
    """The masses [CHUNK] of the kept blocks from `start` on, and 0."""
    ids, exists = _kept_ids(kept, start, num_kept, CHUNK)
    return tl.load(row_masses + ids, mask=exists, other=0.0)


@triton.jit
def _mass_above(mass, found, step):
    """The sums, float64, of masses whose bits reach one, two and three steps above `found`."""
    bits = mass.to(tl.int32, bitcast=True)
    wide = mass.to(tl.float64)
    first = tl.sum(tl.where(bits >= found + step, wide, 0.0), 0)
    second = tl.sum(tl.where(bits >= found + 2 * step, wide, 0.0), 0)
    third = tl.sum(tl.where(bits >= found + 3 * step, wide, 0.0), 0)
    return first, second, third
