"""Log probabilities of given tokens, their ranks, and the most likely ones."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import logprobs_sizes
from ops.kernels.chain import chained
from ops.kernels.logits.rows import block_sums, chunk_size, largest_kernel, ordered, row_largest


@triton.jit
def sums_kernel(
    logits,
    token_ids,
    chunk_largest,
    chunk_sums,  # [R, NUM_CHUNKS] float64
    chunk_ranks,  # [R, NUM_CHUNKS] int32
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Grid (R, NUM_CHUNKS): a chunk's sum of e^(logit - largest), and how many of it come before
    the row's token.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _, largest = row_largest(chunk_largest, row, NUM_CHUNKS, CHUNKS)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * VOCAB + ids, mask=ids < VOCAB, other=float("-inf"))
    mass = tl.where(ids < VOCAB, tl.exp(values - largest), 0.0)
    token = tl.load(token_ids + row)
    chosen = tl.load(logits + row * VOCAB + token)
    is_before = (ids < VOCAB) & ((values > chosen) | ((values == chosen) & (ids < token)))
    slot = row * NUM_CHUNKS + chunk
    tl.store(chunk_sums + slot, tl.sum(block_sums(mass, CHUNK).to(tl.float64), 0))
    tl.store(chunk_ranks + slot, tl.sum(is_before.to(tl.int32), 0))


@triton.jit
def logprob_kernel(
    logits,
    token_ids,
    chunk_largest,
    chunk_sums,
    chunk_ranks,
    totals,  # [R] float64: log of the sum of e^logit
    logprobs,
    ranks,
    VOCAB: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Grid (R,)."""
    row = tl.program_id(0).to(tl.int64)
    _, largest = row_largest(chunk_largest, row, NUM_CHUNKS, CHUNKS)
    chunks = tl.arange(0, CHUNKS)
    slots = row * NUM_CHUNKS + chunks
    mass = tl.sum(tl.load(chunk_sums + slots, mask=chunks < NUM_CHUNKS, other=0.0), 0)
    total = largest.to(tl.float64) + tl.log(mass)
    chosen = tl.load(logits + row * VOCAB + tl.load(token_ids + row))
    tl.store(totals + row, total)
    tl.store(logprobs + row, (chosen.to(tl.float64) - total).to(tl.float32))
    tl.store(ranks + row, 1 + tl.sum(tl.load(chunk_ranks + slots, mask=chunks < NUM_CHUNKS, other=0), 0))


@triton.jit
def pack_kernel(logits, packed, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    """Grid (R, chunks): a logit and its id as one int64, in the order of logits, lower ids
    above.
    """
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    keys = ordered(tl.load(logits + row * VOCAB + ids, mask=ids < VOCAB, other=float("-inf")))
    tl.store(packed + row * VOCAB + ids, (keys.to(tl.int64) << 32) - ids, mask=ids < VOCAB)


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logits [R, V] float32, token_ids [R] int32 below V -> [R] float32, ranks [R] int32, and the
    best: [R, num_top] int32, float32. Ids are not checked: they are on the device.
    """
    num_rows, vocab_size = logprobs_sizes(logits, token_ids, num_top)
    chunk = chunk_size(vocab_size)
    num_chunks = triton.cdiv(vocab_size, chunk)
    chunks = triton.next_power_of_2(num_chunks)
    chunk_largest = logits.new_empty(num_rows, num_chunks)
    chunk_counts = torch.empty_like(chunk_largest, dtype=torch.int32)
    chunk_sums = torch.empty_like(chunk_largest, dtype=torch.float64)
    totals = logits.new_empty(num_rows, dtype=torch.float64)
    logprobs, ranks = logits.new_empty(num_rows), torch.empty_like(token_ids)
    if num_rows:
        grid = (num_rows, num_chunks)
        largest_kernel[grid](
            logits, chunk_largest, chunk_counts, None, VOCAB=vocab_size, CHUNK=chunk, **chained(logits.device)
        )
        sizes = {"VOCAB": vocab_size, "NUM_CHUNKS": num_chunks, "CHUNKS": chunks}
        sums_kernel[grid](logits, token_ids, chunk_largest, chunk_sums, chunk_counts, CHUNK=chunk, **sizes)
        logprob_kernel[(num_rows,)](
            logits, token_ids, chunk_largest, chunk_sums, chunk_counts, totals, logprobs, ranks, **sizes
        )
    top_ids = _top_ids(logits, num_top)
    top = (logits.gather(1, top_ids) - totals[:, None]).float()
    return logprobs, ranks, top_ids.int(), top


def _top_ids(logits: Tensor, num_top: int) -> Tensor:
    """The ids of the largest, in falling order, the lower id first where equal: [R, num_top]
    int64.
    """
    if num_top == 0 or logits.shape[0] == 0:
        return logits.new_empty((logits.shape[0], num_top), dtype=torch.int64)
    packed = torch.empty_like(logits, dtype=torch.int64)
    num_rows, vocab_size = logits.shape
    chunk = chunk_size(vocab_size)
    pack_kernel[(num_rows, triton.cdiv(vocab_size, chunk))](logits, packed, VOCAB=vocab_size, CHUNK=chunk)
    return -packed.topk(num_top, dim=1).values & 0xFFFFFFFF
