"""The same bits whatever is computed beside: rows, sequences, chunks, threads, tensor-parallel
shards.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from ops import cpu
from ops.cpu.matmul.packed import PackedWeight
from ops.interface import AttentionMetadata, Quantization
from ops.tree import add_tree
from tests.ops.caches import laid_out

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason()))

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
QUANTIZATIONS = (None, "int8", "int4")
quantizations = pytest.mark.parametrize("quantization", QUANTIZATIONS)
MAX_ROWS = 70
OUT, IN = 83, 304


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def same_bits(got: Tensor, want: Tensor) -> bool:
    return torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def linears(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Every op on rows alone, as a function of x [T, IN]."""
    weight, gate_up, bias = (
        torch.randn(OUT, IN).to(dtype),
        torch.randn(2 * OUT, IN).to(dtype),
        torch.randn(OUT).to(dtype),
    )
    norm = torch.randn(IN).to(dtype)
    for stored in QUANTIZATIONS:
        plain, tree = cpu.prepare_linear(weight, stored), cpu.prepare_tree_linear(weight, 8, stored)
        gated = cpu.prepare_gate_up(gate_up, stored)
        yield f"linear, {stored}", partial(cpu.linear, weight=plain, bias=bias)
        yield f"linear_float32, {stored}", partial(cpu.linear_float32, weight=plain)
        yield f"gate_up_silu, {stored}", partial(cpu.gate_up_silu, weight=gated)
        yield f"linear_tree, {stored}", partial(cpu.linear_tree, weight=tree)
    yield "silu_and_mul", cpu.silu_and_mul
    yield "rms_norm", lambda x: cpu.rms_norm(x, norm, 1e-6)
    yield "add_rms_norm", lambda x: cpu.add_rms_norm(x.float() / 3, x.clone(), norm, 1e-6)
    yield "add_gated", lambda x: gated_sum(x, cpu.linear_float32(x, plain))
    yield "qk_norm", lambda x: normed_heads(x, norm[:38], norm[38:76])
    router = cpu.prepare_linear(torch.randn(12, IN).to(dtype) / 8)
    weights = [(torch.randn(80, IN).to(dtype) / 8, torch.randn(IN, 40).to(dtype)) for _ in range(8)]
    experts = cpu.prepare_experts(weights, 2, 4)
    yield "route", lambda x: torch.cat(routed(x, router), 1)
    yield "experts_tree", lambda x: cpu.experts_tree(x, *routed(x, router), experts)


def gated_sum(x: Tensor, output: Tensor) -> Tensor:
    total = output.clone()
    cpu.add_gated(x[:, :1].float().contiguous(), output, total)
    return total


def normed_heads(x: Tensor, query_weight: Tensor, key_weight: Tensor) -> Tensor:
    qkv = x.clone()
    cpu.qk_norm(qkv, query_weight, key_weight, 2, 1e-6)
    return qkv


def routed(x: Tensor, router: PackedWeight) -> tuple[Tensor, Tensor]:
    """Five of twelve experts a row; a row of NaN goes to the first five."""
    return cpu.route(cpu.linear_float32(x, router), 5, True)


@dtypes
def test_a_row_knows_nothing_of_the_rows_beside_it(dtype: torch.dtype) -> None:
    x = torch.randn(MAX_ROWS, IN).to(dtype)
    for name, op in linears(dtype):
        whole = op(x)
        for rows in range(1, MAX_ROWS + 1):
            assert same_bits(op(x[:rows]), whole[:rows]), f"{name}, {rows} rows"
            assert same_bits(op(x[-rows:]), whole[-rows:]), f"{name}, the last {rows} rows"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("out", [115, 131, 257, 289])
def test_few_rows_are_what_they_are_among_many(two_threads: None, threads: int, out: int) -> None:
    """They may be multiplied by two panels at a time: odd and even numbers of these, at any
    level.
    """
    torch.set_num_threads(threads)
    x, weight, bias = torch.randn(20, IN).bfloat16(), torch.randn(out, IN).bfloat16(), torch.randn(out).bfloat16()
    plain, tree = cpu.prepare_linear(weight), cpu.prepare_tree_linear(weight, 4)
    for op in (partial(cpu.linear, weight=plain, bias=bias), partial(cpu.linear_tree, weight=tree)):
        whole = op(x)
        for rows in (1, 2, 3):
            assert same_bits(op(x[7 : 7 + rows]), whole[7 : 7 + rows]), rows


@dtypes
def test_a_row_of_nan_spoils_no_other(dtype: torch.dtype) -> None:
    x = torch.randn(MAX_ROWS, IN).to(dtype)
    x[13] = torch.nan
    others = torch.arange(MAX_ROWS) != 13
    for name, op in linears(dtype):
        assert same_bits(op(x)[others], op(x[others])), name
        assert op(x)[13].isnan().all() or name == "route", name


@dtypes
@pytest.mark.parametrize("rows", [1, 5, 400])
def test_threads_change_nothing(two_threads: None, dtype: torch.dtype, rows: int) -> None:
    x = torch.randn(rows, IN).to(dtype)
    for name, op in linears(dtype):
        with_two = op(x)
        torch.set_num_threads(1)
        assert same_bits(op(x), with_two), name
        torch.set_num_threads(2)


@pytest.mark.parametrize("rows", [1, 400])
def test_a_thread_that_flushes_subnormal_numbers_keeps_them_here(two_threads: None, rows: int) -> None:
    """torch.set_flush_denormal is of the thread that calls it: others would go on with them."""
    x, norm = torch.randn(rows, IN) * 1e-38, torch.randn(IN)
    weight = cpu.prepare_linear(torch.randn(OUT, IN))
    wanted = cpu.linear_float32(x, weight), cpu.rms_norm(x, norm, 1e-6), cpu.silu_and_mul(x)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        try:
            found = cpu.linear_float32(x, weight), cpu.rms_norm(x, norm, 1e-6), cpu.silu_and_mul(x)
        finally:
            torch.set_flush_denormal(False)
        assert all(map(same_bits, found, wanted)), threads


@dtypes
@quantizations
@pytest.mark.parametrize("cut", [1, 16, 40, 82])
def test_a_column_knows_nothing_of_the_columns_beside_it(
    dtype: torch.dtype, cut: int, quantization: Quantization | None
) -> None:
    weight, bias, x = torch.randn(OUT, IN).to(dtype), torch.randn(OUT).to(dtype), torch.randn(9, IN).to(dtype)
    halves = slice(cut), slice(cut, None)
    whole = cpu.linear(x, cpu.prepare_linear(weight, quantization), bias)
    parts = [cpu.linear(x, cpu.prepare_linear(weight[s], quantization), bias[s]) for s in halves]
    assert same_bits(torch.cat(parts, 1), whole)
    gate, up = torch.randn(2, OUT, IN).to(dtype)
    gated = cpu.gate_up_silu(x, cpu.prepare_gate_up(torch.cat((gate, up)), quantization))
    shards = [cpu.prepare_gate_up(torch.cat((gate[s], up[s])), quantization) for s in halves]
    assert same_bits(torch.cat([cpu.gate_up_silu(x, shard) for shard in shards], 1), gated)


@dtypes
@quantizations
@pytest.mark.parametrize("leaf", [38, 7, 130], ids=["even", "odd", "groups and a rest"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_that_add_as_a_tree_agree_with_one(
    dtype: torch.dtype, size: int, leaf: int, quantization: Quantization | None
) -> None:
    weight, x = torch.randn(OUT, 8 * leaf).to(dtype), torch.randn(11, 8 * leaf).to(dtype)
    whole = cpu.linear_tree(x, cpu.prepare_tree_linear(weight, 8, quantization))
    ranks = zip(x.chunk(size, dim=1), weight.chunk(size, dim=1), strict=True)
    partials = [
        cpu.linear_tree(part.contiguous(), cpu.prepare_tree_linear(shard.contiguous(), 8 // size, quantization))
        for part, shard in ranks
    ]
    assert same_bits(add_tree(partials), whole)


BLOCK, LENGTH = 16, 1100  # more than two splits of keys
SCALE = 0.2


def sequences(*spans: tuple[int, int], table: Tensor) -> AttentionMetadata:
    """Sequences that share a block table, each with its last rows' (first, last + 1) positions."""
    lens = [end - begin for begin, end in spans]
    return AttentionMetadata(
        query_starts=torch.tensor([0, *lens]).cumsum(0).int(),
        context_lens=torch.tensor([end for _, end in spans], dtype=torch.int32),
        block_tables=table.expand(len(spans), -1).contiguous(),
        slot_mapping=torch.zeros(sum(lens), dtype=torch.int32),
        max_query_len=max(lens),
        max_context_len=max(end for _, end in spans),
    )


def context(dtype: torch.dtype, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Key and value caches of one sequence of LENGTH tokens, its blocks in random order, and its
    block table.
    """
    num_blocks = -(-LENGTH // BLOCK)
    shape = (num_blocks + 1, kv_heads, BLOCK, head_dim)
    return torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), (torch.randperm(num_blocks) + 1).int()


def cut_off(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The cache as it was when only `length` tokens had been written: NaN elsewhere."""
    early = torch.full_like(cache, torch.nan)
    for index, block in enumerate(table.tolist()):
        count = min(max(length - index * BLOCK, 0), BLOCK)
        early[block, :, :count] = cache[block, :, :count]
    return early


@dtypes
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(14, 2, 64), (3, 3, 128), (40, 1, 32)])
def test_decode_and_prefill_share_their_arithmetic(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> None:
    keys, values, table = context(dtype, kv_heads, head_dim)
    query = torch.randn(LENGTH, heads, head_dim).to(dtype)
    caches = laid_out(cpu, keys, values)
    whole = cpu.paged_attention(query, *caches, sequences((0, LENGTH), table=table), SCALE)
    for begin, end in [
        (0, 1),
        (0, 7),
        (7, 15),
        (15, 16),
        (16, 17),
        (63, 65),
        (511, 512),
        (512, 513),
        (600, 1030),
        (1099, 1100),
    ]:
        early = laid_out(cpu, cut_off(keys, table, end), cut_off(values, table, end))
        chunk = cpu.paged_attention(query[begin:end], *early, sequences((begin, end), table=table), SCALE)
        assert same_bits(chunk, whole[begin:end]), f"positions {begin} to {end}"
        rows = range(begin, end) if end - begin < 20 else (begin, begin + 77, end - 1)
        for row in rows:
            alone = cpu.paged_attention(query[row : row + 1], *caches, sequences((row, row + 1), table=table), SCALE)
            assert same_bits(alone, whole[row : row + 1]), f"position {row} alone"


@dtypes
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [1, 15, 16, 533, 575, 576])
def test_what_is_not_finite_spoils_no_position_before_it(dtype: torch.dtype, wrong: float, at: int) -> None:
    """Whose keys and values may be in blocks that other sequences share."""
    keys, values, table = context(dtype, 2, 64)
    query = torch.randn(LENGTH, 14, 64).to(dtype)
    whole = cpu.paged_attention(query, *laid_out(cpu, keys, values), sequences((0, LENGTH), table=table), SCALE)
    for cache in (keys, values):
        cache[table[at // BLOCK], :, at % BLOCK] = wrong
    caches = laid_out(cpu, keys, values)
    for begin, end in [(0, LENGTH), (max(0, at - 3), at + 1), (max(0, at - 70), at + 200)]:
        got = cpu.paged_attention(query[begin:end], *caches, sequences((begin, end), table=table), SCALE)
        assert same_bits(got[: at - begin], whole[begin:at]), f"positions {begin} to {end}"
        assert not got[at - begin :].isfinite().any()


@dtypes
def test_a_sequence_knows_nothing_of_the_others(two_threads: None, dtype: torch.dtype) -> None:
    keys, values, table = context(dtype, 2, 64)
    spans = [(40, 41), (1099, 1100), (0, 70), (700, 733), (512, 513), (300, 1000), (0, 1)]
    queries = [torch.randn(end - begin, 6, 64).to(dtype) for begin, end in spans]
    together = cpu.paged_attention(torch.cat(queries), keys, values, sequences(*spans, table=table), SCALE)
    for threads in (1, 2, 16):
        torch.set_num_threads(threads)
        alone = [
            cpu.paged_attention(query, keys, values, sequences(span, table=table), SCALE)
            for query, span in zip(queries, spans, strict=True)
        ]
        assert same_bits(torch.cat(alone), together), f"{threads} threads"


@dtypes
def test_a_head_knows_nothing_of_the_others(dtype: torch.dtype) -> None:
    keys, values, table = context(dtype, 4, 64)
    query = torch.randn(90, 8, 64).to(dtype)
    metadata = sequences((600, 690), table=table)
    whole = cpu.paged_attention(query, keys, values, metadata, SCALE)
    for rank in range(4):
        shard = query[:, 2 * rank : 2 * rank + 2].contiguous()
        caches = keys[:, rank : rank + 1].contiguous(), values[:, rank : rank + 1].contiguous()
        assert same_bits(cpu.paged_attention(shard, *caches, metadata, SCALE), whole[:, 2 * rank : 2 * rank + 2])


def test_metadata_that_points_outside_is_refused() -> None:
    keys, values, table = context(torch.float32, 1, 32)
    query, good = torch.randn(2, 1, 32), sequences((10, 11), (20, 21), table=table)
    for name, wrong in {
        "block_tables": good.block_tables.index_fill(1, torch.tensor([0]), len(keys)),
        "context_lens": torch.tensor([11, BLOCK * len(table) + 1], dtype=torch.int32),
        "query_starts": torch.tensor([0, 1, 3], dtype=torch.int32),
    }.items():
        with pytest.raises(ValueError, match=r"sequence [01] of the metadata"):
            cpu.paged_attention(query, keys, values, replace(good, **{name: wrong}), SCALE)


def test_slots_and_positions_that_do_not_exist_are_refused() -> None:
    cache, angles = torch.zeros(3, 1, BLOCK, 32), torch.zeros(50, 32)
    qkv, good = torch.randn(2, 3 * 32), torch.tensor([1, 2], dtype=torch.int32)
    for positions, slots in [(good + 48, good), (good - 3, good), (good, good + 46), (good, good - 2)]:
        with pytest.raises(ValueError, match=r"row [01]: position -?\d+ of 50, slot -?\d+ of 48"):
            cpu.rotary_and_cache(qkv, positions, angles, slots, cache, cache.clone())
    assert not cache.any()


@pytest.mark.parametrize("rows", [1, 33])
def test_sampling_a_row_knows_nothing_of_the_others(two_threads: None, rows: int) -> None:
    logits = torch.randn(rows, 3001) * 3
    columns = {
        "temperature": torch.rand(rows) + 0.1,
        "top_k": torch.randint(0, 100, (rows,), dtype=torch.int32),
        "top_p": torch.rand(rows) * 0.5 + 0.5,
        "min_p": torch.rand(rows) * 0.1,
        "seed": torch.randint(-(1 << 62), 1 << 62, (rows,)),
        "choice": torch.zeros(rows, dtype=torch.int32),
        "position": torch.arange(rows, dtype=torch.int32),
    }
    together = cpu.sample(logits, **columns)[0]
    logprobs = cpu.token_logprobs(logits, together, 5)
    for row in range(rows):
        one = slice(row, row + 1)
        assert cpu.sample(logits[one], **{name: column[one] for name, column in columns.items()})[0] == together[row]
        for got, want in zip(cpu.token_logprobs(logits[one], together[one], 5), logprobs, strict=True):
            assert same_bits(got, want[one])
