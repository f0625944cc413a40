from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

pytest.importorskip("triton")
from ops import kernels
from tests.ops.exact import assert_rounded_once
from tests.ops.kernels.attention.paged import attend, make_paged
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("dtype", "cache_dtype", "heads", "kv_heads", "head_dim"),
    [
        (FP32, FP32, 6, 2, 16),
        (BF16, BF16, 14, 2, 64),
        (FP16, FP16, 3, 3, 32),
        (BF16, BF16, 7, 1, 128),
        (BF16, FP8, 14, 2, 64),
        (FP16, FP8, 4, 1, 128),
    ],
    ids=str,
)
def test_decode_rows_chunks_and_prompts_together(
    dtype: torch.dtype, cache_dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> None:
    query_lens, context_lens = [1, 21, 1, 5, 1, 1, 40], [1, 21, 64, 70, 513, 16, 41]
    paged = make_paged(context_lens, kv_heads, head_dim, cache_dtype)
    query = torch.randn(sum(query_lens), heads, head_dim, device=DEVICE).to(dtype)
    scale = head_dim**-0.5
    got = kernels.paged_attention(query, paged.keys, paged.values, paged.metadata(query_lens), scale)
    assert got.dtype == dtype
    weights = FP16 if cache_dtype == FP8 else dtype  # are cast for their product with the values
    slack = 2e-6 if dtype == FP32 else torch.finfo(weights).eps / 2
    # A float8 cache is multiplied in float16, which cuts bfloat16's queries nowhere within their
    # range.
    assert_rounded_once(got, attend(query, paged, query_lens, scale), slack)


@pytest.mark.parametrize(("context_lens", "kv_heads"), [([700], 2), ([30, 700], 1)])
def test_splits_are_folded_to_the_same_bits_by_the_last_that_is_done(context_lens: list[int], kv_heads: int) -> None:
    paged = make_paged(context_lens, kv_heads, 16, FP32)
    query_lens = [1] * len(context_lens)
    query = torch.randn(len(context_lens), 3 * kv_heads, 16, device=DEVICE)
    want = kernels.paged_attention(query, paged.keys, paged.values, paged.metadata(query_lens), 0.25)
    arrivals = torch.zeros(len(context_lens), kv_heads, dtype=torch.int32, device=DEVICE)
    meta = replace(paged.metadata(query_lens), arrivals=arrivals)
    with patch("ops.kernels.attention.paged.fold_kernel", None):
        for _ in range(2):
            assert torch.equal(kernels.paged_attention(query, paged.keys, paged.values, meta, 0.25), want)
            assert not arrivals.any()


def test_padding_sequences_have_no_rows() -> None:
    """As in a batch padded to a fixed size: no rows, no context, null blocks."""
    paged = make_paged([700, 30], 2, 16, BF16)
    query = torch.randn(2, 4, 16, device=DEVICE).to(BF16)
    alone = kernels.paged_attention(query, paged.keys, paged.values, paged.metadata([1, 1]), 0.25)
    meta = paged.metadata([1, 1])
    for name, fill in (("query_starts", 2), ("context_lens", 0)):
        object.__setattr__(meta, name, torch.nn.functional.pad(getattr(meta, name), (0, 3), value=fill))
    object.__setattr__(meta, "block_tables", torch.nn.functional.pad(meta.block_tables, (0, 0, 0, 3)))
    assert torch.equal(kernels.paged_attention(query, paged.keys, paged.values, meta, 0.25), alone)


def test_what_does_not_fit_is_refused() -> None:
    paged = make_paged([5], 2, 16, BF16)
    good = torch.randn(1, 4, 16, device=DEVICE).to(BF16)
    with pytest.raises(ValueError, match="3 query heads cannot share 2"):
        kernels.paged_attention(good[:, :3].contiguous(), paged.keys, paged.values, paged.metadata([1]), 1.0)
    with pytest.raises(ValueError, match=r"query is torch.float16, not torch.bfloat16"):
        kernels.paged_attention(good.half(), paged.keys, paged.values, paged.metadata([1]), 1.0)
    cache = torch.zeros(2, 2, 16, 48, device=DEVICE, dtype=BF16)
    with pytest.raises(ValueError, match="head_dim=48"):
        kernels.paged_attention(
            torch.zeros(1, 2, 48, device=DEVICE, dtype=BF16), cache, cache, paged.metadata([1]), 1.0
        )
