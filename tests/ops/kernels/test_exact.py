"""The same bits whatever is computed beside: rows, sequences, chunks, heads, tensor-parallel
shards.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from ops import kernels
from ops.kernels.matmul.quantization import encode_rows
from ops.reference.matmul.float8 import encode
from ops.tree import add_tree
from tests.ops.kernels.attention.paged import make_paged
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
dtypes = pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=["bfloat16", "float16", "float32"])
OUT, IN = 83, 304


def same_bits(got: Tensor, want: Tensor) -> bool:
    return torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def random(*sizes: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.randn(sizes, device=DEVICE).to(dtype)


def on_rows(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Every op on rows alone, as a function of x [T, IN]."""
    weight, bias, norm = random(OUT, IN, dtype=dtype), random(OUT, dtype=dtype), random(IN, dtype=dtype)
    gate_up, tree = random(2 * OUT, IN, dtype=dtype), kernels.prepare_tree_linear(weight, 8)
    if dtype == BF16:
        yield from on_quantized_rows(weight, gate_up, bias)
    yield "linear", lambda x: kernels.linear(x, weight, bias)
    yield "linear_float32", lambda x: kernels.linear_float32(x, weight)
    yield "gate_up_silu", lambda x: kernels.gate_up_silu(x, gate_up)
    yield "linear_tree", lambda x: kernels.linear_tree(x, tree)
    yield "silu_and_mul", kernels.silu_and_mul
    yield "rms_norm", lambda x: kernels.rms_norm(x, norm, 1e-6)
    yield "add_rms_norm", lambda x: kernels.add_rms_norm(x.float() / 3, x.clone(), norm, 1e-6)


def on_quantized_rows(
    weight: Tensor, gate_up: Tensor, bias: Tensor
) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    int8, int4 = kernels.prepare_linear(weight, "int8"), kernels.prepare_tree_linear(weight, 4, "int4")
    yield "linear int8", lambda x: kernels.linear(x, int8, bias)
    yield "linear_tree int4", lambda x: kernels.linear_tree(x, int4)
    if DEVICE.type == "cpu" or torch.cuda.get_device_capability() >= (8, 9):
        fp8 = kernels.prepare_gate_up(gate_up, "fp8")
        yield "gate_up_silu fp8", lambda x: kernels.gate_up_silu(x, fp8)


@dtypes
def test_a_row_knows_nothing_of_the_rows_beside_it(dtype: torch.dtype) -> None:
    x = random(150, IN, dtype=dtype)
    for name, op in on_rows(dtype):
        is_product = "linear" in name or "gate_up_silu" in name
        whole = op(x) if is_product else op(x[:6].clone())
        for begin, end in [(149, 150), (20, 37), (50, 114)] if is_product else [(0, 1), (3, 6)]:
            assert same_bits(op(x[begin:end].clone()), whole[begin:end]), f"{name}, rows {begin} to {end}"


@dtypes
def test_a_row_of_nan_spoils_no_other(dtype: torch.dtype) -> None:
    x = random(20, IN, dtype=dtype)
    x[13] = torch.nan
    others = torch.arange(20, device=DEVICE) != 13
    for name, op in on_rows(dtype):
        got = op(x)
        assert same_bits(got[others], op(x[others])), name
        assert got[13].isnan().all(), name


@dtypes
@pytest.mark.parametrize("cut", [1, 64, 82])
def test_a_column_knows_nothing_of_the_columns_beside_it(dtype: torch.dtype, cut: int) -> None:
    weight, bias, x = random(OUT, IN, dtype=dtype), random(OUT, dtype=dtype), random(9, IN, dtype=dtype)
    parts = [kernels.linear(x, weight[part], bias[part].clone()) for part in (slice(cut), slice(cut, None))]
    assert same_bits(torch.cat(parts, 1), kernels.linear(x, weight, bias))


@dtypes
@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("leaf", [64, 7])
def test_ranks_that_add_as_a_tree_agree_with_one(dtype: torch.dtype, size: int, leaf: int) -> None:
    weight, x = random(OUT, 8 * leaf, dtype=dtype), random(19, 8 * leaf, dtype=dtype)
    whole = kernels.linear_tree(x, kernels.prepare_tree_linear(weight, 8))
    ranks = zip(x.chunk(size, dim=1), weight.chunk(size, dim=1), strict=True)
    partials = [
        kernels.linear_tree(part.contiguous(), kernels.prepare_tree_linear(shard.contiguous(), 8 // size))
        for part, shard in ranks
    ]
    assert same_bits(add_tree(partials), whole)


def test_only_so_many_leaves_are_left_to_the_norm() -> None:
    x, residual, norm = random(3, 96), random(3, OUT), random(OUT)
    for num_leaves, shape in ((1, (1, 3, OUT)), (4, (4, 3, OUT)), (8, (3, OUT))):
        leaves = kernels.linear_leaves(x, kernels.prepare_tree_linear(random(OUT, 96), num_leaves))
        assert leaves.shape == shape
    with pytest.raises(ValueError, match="update has 3 leaves, not 1, 2 or 4"):
        kernels.add_rms_norm(random(3, 3, OUT), residual, norm, 1e-6)
    with pytest.raises(ValueError, match="update has shape"):
        kernels.add(random(2, 4, OUT), residual)


CASES = [(BF16, BF16, 4, 2, 16), (FP16, FP16, 7, 1, 64), (BF16, FP8, 4, 1, 16), (FP32, FP32, 2, 1, 16)]
LENGTH = 1060  # more than four splits of keys


@pytest.mark.parametrize(("dtype", "cache_dtype", "heads", "kv_heads", "head_dim"), CASES, ids=str)
def test_decode_and_prefill_share_their_arithmetic(
    dtype: torch.dtype, cache_dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> None:
    paged = make_paged([LENGTH], kv_heads, head_dim, cache_dtype)
    first = LENGTH - 70 if DEVICE.type == "cpu" else 0
    query = random(LENGTH, heads, head_dim, dtype=dtype)

    def attend(begin: int, end: int) -> Tensor:
        metadata = paged.metadata([end - begin], [end])
        return kernels.paged_attention(query[begin:end].clone(), paged.keys, paged.values, metadata, 0.2)

    whole = attend(first, LENGTH)
    for begin, end in [(1023, 1025), (1000, 1051), (1059, 1060), (1024, 1025), (1023, 1024), (1055, 1056)]:
        assert same_bits(attend(begin, end), whole[begin - first : end - first]), f"positions {begin} to {end}"
    early = attend(500, 530)
    for begin, end in [(511, 512), (512, 513), (500, 513), (529, 530)]:
        assert same_bits(attend(begin, end), early[begin - 500 : end - 500]), f"positions {begin} to {end}"


@pytest.mark.parametrize(("dtype", "cache_dtype", "heads", "kv_heads", "head_dim"), CASES[:1] + CASES[2:], ids=str)
def test_a_sequence_knows_nothing_of_the_others(
    dtype: torch.dtype, cache_dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> None:
    query_lens, context_lens = [1, 1, 33, 2, 1, 1], [41, 600, 90, 66, 513, 1]
    paged = make_paged(context_lens, kv_heads, head_dim, cache_dtype)
    query = random(sum(query_lens), heads, head_dim, dtype=dtype)
    together = kernels.paged_attention(query, paged.keys, paged.values, paged.metadata(query_lens), 0.2)
    for index, (part, want) in enumerate(zip(query.split(query_lens), together.split(query_lens), strict=True)):
        metadata = paged.only(index).metadata([len(part)])
        assert same_bits(kernels.paged_attention(part.clone(), paged.keys, paged.values, metadata, 0.2), want)


def test_a_head_knows_nothing_of_the_others() -> None:
    paged = make_paged([90, 600], 4, 16, BF16)
    query, metadata = random(31, 8, 16, dtype=BF16), paged.metadata([30, 1])
    whole = kernels.paged_attention(query, paged.keys, paged.values, metadata, 0.2)
    for rank in range(4):
        keys, values = (cache[:, rank : rank + 1].contiguous() for cache in (paged.keys, paged.values))
        shard = query[:, 2 * rank : 2 * rank + 2].contiguous()
        assert same_bits(kernels.paged_attention(shard, keys, values, metadata, 0.2), whole[:, 2 * rank : 2 * rank + 2])


def test_rows_are_encoded_as_the_reference_does() -> None:
    rows = random(6, 2 * 2500, dtype=BF16) * 10.0 ** torch.arange(-4, 2, device=DEVICE)[:, None].bfloat16()
    rows[3] = 0.0
    rows[4, 2500:] *= 1e-36
    for got, want in zip(encode_rows(rows, 2), encode(rows, 2), strict=True):
        assert same_bits(got, want)


def test_sampling_a_row_knows_nothing_of_the_others() -> None:
    rows = 6
    logits = random(rows, 700) * 3
    columns = {
        "temperature": torch.tensor([0.0, 0.3, 1.0, 1.7, 0.7, 1.0]),
        "top_k": torch.tensor([0, 5, 0, 100, 0, 3], dtype=torch.int32),
        "top_p": torch.tensor([1.0, 1.0, 0.9, 0.8, 1.0, 0.5]),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.1, 0.2, 0.0]),
        "seed": torch.randint(-(1 << 62), 1 << 62, (rows,)),
        "choice": torch.zeros(rows, dtype=torch.int32),
        "position": torch.arange(rows, dtype=torch.int32),
    }
    columns = {name: column.to(DEVICE) for name, column in columns.items()}
    together = kernels.sample(logits, **columns)
    logprobs = kernels.token_logprobs(logits, together[0], 5)
    for row in range(rows):
        one = slice(row, row + 1)
        alone = kernels.sample(logits[one].clone(), **{name: column[one].clone() for name, column in columns.items()})
        assert torch.equal(alone[:, 0], together[:, row])
        for got, want in zip(kernels.token_logprobs(logits[one].clone(), alone[0], 5), logprobs, strict=True):
            assert same_bits(got, want[one])
