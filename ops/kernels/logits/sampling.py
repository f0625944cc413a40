"""A token for each row of logits, as the reference defines it, in two to six kernels that never
wait for the host.

What top_k and top_p keep is decided by `thresholds`. Tokens can differ from the reference's only
where e^x rounds differently.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import sample_sizes
from ops.interface import Draws
from ops.kernels.chain import begin, chained
from ops.kernels.logits.rows import (
    BLOCK,
    block_sums,
    chunk_size,
    largest_kernel,
    ordered,
    row_largest,
    running_sums,
)
from ops.kernels.logits.thresholds import top_k_kernel, top_p_kernel


@triton.jit
def mass_kernel(
    logits,
    temperature,
    thresholds,  # None: no row has top_k
    chunk_largest,
    masses,  # [R, NUM_CHUNKS * CHUNK] float32
    sums,  # [R, NUM_CHUNKS * CHUNK / 64] float32
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (R, NUM_CHUNKS): e^((logit - largest) / temperature) of what top_k keeps, and the
    blocks' sums.
    """
    begin(CHAINED)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    divisor = tl.load(temperature + row)
    if divisor == 0.0:
        return
    _, largest = row_largest(chunk_largest, row, NUM_CHUNKS, CHUNKS)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * VOCAB + ids, mask=ids < VOCAB, other=float("-inf"))
    mass = tl.exp(tl.div_rn(values - largest, tl.zeros([CHUNK], tl.float32) + divisor))
    is_kept = ids < VOCAB
    if thresholds is not None:
        is_kept &= ordered(values) >= tl.load(thresholds + row)
    mass = tl.where(is_kept, mass, 0.0)
    tl.store(masses + row * (NUM_CHUNKS * CHUNK) + ids, mass)
    blocks = chunk * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK)
    tl.store(sums + row * (NUM_CHUNKS * CHUNK // BLOCK) + blocks, block_sums(mass, CHUNK))


@triton.jit
def keep_kernel(
    masses,
    sums,
    temperature,
    top_p,
    min_p,
    smallest,
    last_ids,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (R, NUM_CHUNKS): zeroes the masses that top_p and min_p drop, and takes the blocks' sums
    anew.
    """
    begin(CHAINED)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    has_top_p = tl.load(top_p + row) < 1.0
    least = tl.load(min_p + row)
    if (tl.load(temperature + row) == 0.0) | ((not has_top_p) & (least <= 0.0)):
        return
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    cells = masses + row * (NUM_CHUNKS * CHUNK) + ids
    mass = tl.load(cells)
    if has_top_p:
        threshold = tl.load(smallest + row)
        is_kept = (mass > threshold) | ((mass == threshold) & (ids <= tl.load(last_ids + row)))
        mass = tl.where(is_kept, mass, 0.0)
    mass = tl.where(mass < least, 0.0, mass)
    tl.store(cells, mass)
    blocks = chunk * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK)
    tl.store(sums + row * (NUM_CHUNKS * CHUNK // BLOCK) + blocks, block_sums(mass, CHUNK))


@triton.jit
def likeliest_kernel(
    chunk_largest,
    chunk_ids,
    drawn,  # [2, R] int32: tokens, and whether rows had any
    VOCAB: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (R,): the largest logit's token, the lowest one of equal ones."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    likeliest, is_finite = _likeliest(chunk_largest, chunk_ids, row, VOCAB, NUM_CHUNKS, CHUNKS)
    tl.store(drawn + row, likeliest)
    tl.store(drawn + tl.num_programs(0) + row, is_finite.to(tl.int32))


@triton.jit
def _likeliest(
    chunk_largest, chunk_ids, row, VOCAB: tl.constexpr, NUM_CHUNKS: tl.constexpr, CHUNKS: tl.constexpr
):  # fmt: skip
    """A row's token, 0 if its largest logit is not finite, and whether it is."""
    parts, largest = row_largest(chunk_largest, row, NUM_CHUNKS, CHUNKS)
    chunks = tl.arange(0, CHUNKS)
    chunk_best = tl.load(chunk_ids + row * NUM_CHUNKS + chunks, mask=chunks < NUM_CHUNKS, other=VOCAB)
    is_finite = tl.abs(largest) < float("inf")
    return tl.where(is_finite, tl.min(tl.where(parts == largest, chunk_best, VOCAB), 0), 0), is_finite


@triton.jit
def draw_kernel(
    masses,
    sums,
    temperature,
    seed,
    choice,
    position,
    chunk_largest,
    chunk_ids,
    drawn,  # [2, R] int32: tokens, and whether rows had any
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Grid (R,): the first token, in order of id, whose running mass exceeds u * total; as
    likeliest_kernel at temperature 0; token 0 of a row whose largest logit is not finite.
    """
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    likeliest, is_finite = _likeliest(chunk_largest, chunk_ids, row, VOCAB, NUM_CHUNKS, CHUNKS)
    tl.store(drawn + tl.num_programs(0) + row, is_finite.to(tl.int32))
    if tl.load(temperature + row) == 0.0:
        tl.store(drawn + row, likeliest)
        return
    counter = tl.load(position + row)
    word, _, _, _ = tl.philox(tl.load(seed + row), counter, tl.load(choice + row), counter * 0, counter * 0)
    number = word.to(tl.uint32).to(tl.float64) * 2.3283064365386963e-10  # 2**-32
    filled, total = running_sums(sums, row, NUM_CHUNKS * CHUNK // BLOCK, BLOCKS)
    target = number * total
    blocks = tl.arange(0, BLOCKS)
    has_mass = (
        tl.load(sums + row * (NUM_CHUNKS * CHUNK // BLOCK) + blocks, blocks < NUM_CHUNKS * CHUNK // BLOCK, 0.0) > 0
    )
    block = tl.sum((filled <= target).to(tl.int32), 0)
    # A block without mass holds no token, even if rounding of the running sums points there.
    block = tl.maximum(tl.max(tl.where(has_mass & (blocks <= block), blocks, -1), 0), 0)
    before = tl.sum(tl.where(blocks == block - 1, filled, 0.0), 0)
    offsets = tl.arange(0, BLOCK)
    mass = tl.load(masses + row * (NUM_CHUNKS * CHUNK) + block * BLOCK + offsets)
    inside = tl.cumsum(mass.to(tl.float64), 0)
    passed = (inside <= target - before) & (mass > 0)
    after = tl.max(tl.where(passed, offsets, -1), 0)  # the token is the next one with any mass, or this, the last one
    following = tl.min(tl.where((mass > 0) & (offsets > after), offsets, BLOCK), 0)
    offset = tl.where(following < BLOCK, following, tl.maximum(after, 0))
    tl.store(drawn + row, tl.where(is_finite, tl.minimum(block * BLOCK + offset, VOCAB - 1), 0))


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    position: Tensor,
    *,
    draws: Draws = "any",
) -> Tensor:
    """logits [R, V] float32 -> tokens and whether rows had any, [2, R] int32."""
    num_rows, vocab_size = sample_sizes(logits, temperature, top_k, top_p, min_p, seed, choice, position)
    drawn = torch.empty((2, num_rows), dtype=torch.int32, device=logits.device)
    if num_rows == 0:
        return drawn
    chunk = chunk_size(vocab_size)
    num_chunks = triton.cdiv(vocab_size, chunk)
    chain = chained(logits.device)
    sizes = {"NUM_CHUNKS": num_chunks, "CHUNKS": triton.next_power_of_2(num_chunks), "VOCAB": vocab_size, **chain}
    chunk_largest = logits.new_empty(num_rows, num_chunks)
    chunk_ids = torch.empty_like(chunk_largest, dtype=torch.int32)
    block_largest = logits.new_empty(num_rows, num_chunks * (chunk // BLOCK.value)) if draws == "any" else None
    largest_kernel[(num_rows, num_chunks)](
        logits, chunk_largest, chunk_ids, block_largest, VOCAB=vocab_size, CHUNK=chunk, **chain
    )
    if draws == "greedy":
        likeliest_kernel[(num_rows,)](chunk_largest, chunk_ids, drawn, **sizes, num_warps=1)
        return drawn
    masses, sums = _masses(logits, temperature, top_k, top_p, min_p, chunk_largest, block_largest)
    draw_kernel[(num_rows,)](
        masses, sums, temperature, seed, choice, position, chunk_largest, chunk_ids, drawn,
        CHUNK=chunk, BLOCKS=triton.next_power_of_2(sums.shape[1]), **sizes, num_warps=8,
    )  # fmt: skip
    return drawn


def _masses(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    chunk_largest: Tensor,
    block_largest: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What is drawn from, [R, chunks * CHUNK] float32, and the sums of its blocks of 64.
    block_largest: None if no row has top_k, top_p or min_p.
    """
    num_rows, vocab_size = logits.shape
    num_chunks, chunk = chunk_largest.shape[1], chunk_size(vocab_size)
    masses = logits.new_empty(num_rows, num_chunks * chunk)
    sums = logits.new_empty(num_rows, num_chunks * (chunk // BLOCK.value))
    blocks, chunks = triton.next_power_of_2(sums.shape[1]), triton.next_power_of_2(num_chunks)
    sizes = {"CHUNK": chunk, "NUM_CHUNKS": num_chunks, **chained(logits.device)}
    of_mass = {"VOCAB": vocab_size, "CHUNKS": chunks, **sizes}
    grid = (num_rows, num_chunks)
    if block_largest is None:
        mass_kernel[grid](logits, temperature, None, chunk_largest, masses, sums, **of_mass)
        return masses, sums
    thresholds, last_ids = torch.empty_like(top_k), torch.empty_like(top_k)
    smallest, kept = torch.empty_like(temperature), torch.empty_like(sums, dtype=torch.int32)
    top_k_kernel[(num_rows,)](
        logits, top_k, block_largest, kept, thresholds, VOCAB=vocab_size, BLOCKS=blocks, **sizes, num_warps=8
    )
    mass_kernel[grid](logits, temperature, thresholds, chunk_largest, masses, sums, **of_mass)
    top_p_kernel[(num_rows,)](
        masses, sums, temperature, top_p, kept, smallest, last_ids, BLOCKS=blocks, **sizes, num_warps=8
    )
    keep_kernel[grid](masses, sums, temperature, top_p, min_p, smallest, last_ids, **sizes)
    return masses, sums
