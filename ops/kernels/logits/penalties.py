"""Repetition, frequency and presence penalties: a row's tokens are counted, then its logits changed
where any were.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ops.checks import penalty_sizes
from ops.kernels.logits.rows import chunk_size


@triton.jit
def count_kernel(
    counts,  # [R, VOCAB] int32, zeros
    history_ids,
    history_starts,
    history_lengths,
    history_num_prompt,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (R,). The lowest bit says that a token was in the prompt; the bits above count it in the
    output.
    """
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(history_starts + row)
    length = tl.load(history_lengths + row)
    num_prompt = tl.load(history_num_prompt + row)
    for first in range(0, length, BLOCK):
        index = first + tl.arange(0, BLOCK)
        ids = tl.load(history_ids + start + index, mask=index < length, other=0)
        tl.atomic_or(counts + row * VOCAB + ids, 1, mask=index < tl.minimum(num_prompt, length))
        tl.atomic_add(counts + row * VOCAB + ids, 2, mask=(index >= num_prompt) & (index < length))


@triton.jit
def penalty_kernel(
    logits, counts, history_lengths, presence, frequency, repetition, VOCAB: tl.constexpr, CHUNK: tl.constexpr
):
    """Grid (R, chunks)."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(history_lengths + row) == 0:
        return
    ids = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    counted = tl.load(counts + row * VOCAB + ids, mask=ids < VOCAB, other=0)
    cells = logits + row * VOCAB + ids
    values = tl.load(cells, mask=counted > 0, other=0.0)
    factor = tl.load(repetition + row)
    values = tl.where(values > 0, tl.div_rn(values, tl.zeros([CHUNK], tl.float32) + factor), values * factor)
    num_outputs = (counted >> 1).to(tl.float32)
    added = tl.where(num_outputs > 0, tl.load(presence + row), 0.0)
    values -= tl.fma(tl.load(frequency + row) + tl.zeros([CHUNK], tl.float32), num_outputs, added)
    tl.store(cells, values, mask=counted > 0)


def apply_penalties(
    logits: Tensor,
    history_ids: Tensor,
    history_starts: Tensor,
    history_lengths: Tensor,
    history_num_prompt: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> None:
    """In place on logits [R, V] float32; history_ids [*] and history_starts, history_lengths and
    history_num_prompt [R] int32.
    """
    columns = (history_starts, history_lengths, history_num_prompt, presence, frequency, repetition)
    num_rows, vocab_size = penalty_sizes(logits, history_ids, *columns)
    if history_ids.shape[0] == 0:
        return
    counts = torch.zeros_like(logits, dtype=torch.int32)
    count_kernel[(num_rows,)](
        counts, history_ids, history_starts, history_lengths, history_num_prompt, VOCAB=vocab_size, BLOCK=512
    )
    chunk = chunk_size(vocab_size)
    penalty_kernel[(num_rows, triton.cdiv(vocab_size, chunk))](
        logits, counts, history_lengths, presence, frequency, repetition, VOCAB=vocab_size, CHUNK=chunk
    )
