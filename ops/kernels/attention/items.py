"""Which sequence, and which part of it, a program computes: items are counted over the sequences,
on the device.
"""

import triton
import triton.language as tl

LEAST_SEQUENCES = 128  # that a program reads at once, one per thread: fewer would need another compilation
MOST_KEPT = tl.constexpr(512)  # sequences whose items are counted once: more would not fit into registers


@triton.jit
def query_lens(query_starts, num_sequences, SEQUENCES: tl.constexpr):
    """Each sequence's number of rows: [SEQUENCES], zeros at the end."""
    ids = tl.arange(0, SEQUENCES)
    exists = ids < num_sequences
    return tl.load(query_starts + ids + 1, mask=exists, other=0) - tl.load(query_starts + ids, mask=exists, other=0)


@triton.jit
def find(ends, index):
    """Which sequence item `index` is of, and which of its items; `ends`: the running number of
    items.
    """
    is_before = ends <= index
    return tl.sum(is_before.to(tl.int32), 0), index - tl.max(tl.where(is_before, ends, 0), 0)
