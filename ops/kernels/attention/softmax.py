"""The one piece of arithmetic that decode and prefill attention share, so that a row has the same
bits in both.

Keys are taken in splits of fixed length. Inside a split, tiles of keys go through an online softmax
that begins anew; what the splits give is folded in their order. Where a product and a sum could be
one rounding or two, `fma` says which.
"""

import triton
import triton.language as tl

# Keys; a multiple of every TILE. Fewer let more programs share one sequence, more need less memory
# for what is folded, and fold less.
SPLIT = tl.constexpr(256)


@triton.jit
def attend_split(
    query,
    keys,
    values,
    block_table,
    first,
    full_end,
    end,
    last_key,
    log2_scale,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # keys
    STAGES: tl.constexpr,
):
    """Keys first:end of one split for query [M, HEAD_DIM]; row m sees keys up to last_key[m], every
    row those below full_end.

    keys, values: where a layer's cache begins for one head; block_table: where the sequence's
    begins; full_end - first is a multiple of TILE. Returns per row the largest score (log2), the
    sum of weights relative to it, and the weighted values.
    """
    largest = tl.full([query.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    acc = tl.zeros([query.shape[0], HEAD_DIM], tl.float32)
    for start in tl.range(first, full_end, TILE, num_stages=STAGES):
        largest, total, acc = _attend_tile(
            query, keys, values, block_table, start, end, last_key, log2_scale, largest, total, acc,
            KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, False,
        )  # fmt: skip
    for start in tl.range(full_end, end, TILE, num_stages=1):
        largest, total, acc = _attend_tile(
            query, keys, values, block_table, start, end, last_key, log2_scale, largest, total, acc,
            KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, True,
        )  # fmt: skip
    return largest, total, acc


@triton.jit
def combine(largest, total, acc, next_largest, next_total, next_acc):
    """Fold a split's results ([M], [M], [M, HEAD_DIM]) into those of the splits before it."""
    joint = tl.maximum(largest, next_largest)
    safe = tl.where(joint == float("-inf"), 0.0, joint)  # no key seen yet: weights of zero, not NaN
    kept = tl.exp2(largest - safe)
    added = tl.exp2(next_largest - safe)
    total = tl.fma(total, kept, next_total * added)
    acc = tl.fma(acc, kept[:, None], next_acc * added[:, None])
    return joint, total, acc


@triton.jit
def _attend_tile(
    query, keys, values, block_table, start, end, last_key, log2_scale, largest, total, acc,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax. MASKED changes what is computed only for keys that a row does
    not see.
    """
    key_ids = start + tl.arange(0, TILE)
    dims = tl.arange(0, HEAD_DIM)
    if MASKED:
        exists = key_ids < end
        block_ids = tl.load(block_table + key_ids // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
    else:
        block_ids = tl.load(block_table + key_ids // BLOCK_SIZE).to(tl.int64)
    cells = (block_ids * (KV_HEADS * BLOCK_SIZE) + key_ids % BLOCK_SIZE)[:, None] * HEAD_DIM + dims[None, :]
    if MASKED:
        key = tl.load(keys + cells, mask=exists[:, None], other=0.0)
        value = tl.load(values + cells, mask=exists[:, None], other=0.0)  # a weight of 0 would not silence a NaN
    else:
        key = tl.load(keys + cells)
        value = tl.load(values + cells)
    key = key.to(query.dtype)
    value = value.to(query.dtype)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if MASKED:
        scores = tl.where(key_ids[None, :] <= last_key[:, None], scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, 1) * log2_scale)
    safe = new_largest
    if MASKED:
        safe = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(tl.fma(scores, log2_scale, -safe[:, None]))
    kept = tl.exp2(largest - safe)
    total = tl.fma(total, kept, tl.sum(weights, 1))
    acc = tl.dot(weights.to(value.dtype), value, acc * kept[:, None], input_precision="ieee")
    return new_largest, total, acc
