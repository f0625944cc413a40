"""The product that turns queries and keys itself gives the bits of one kernel after the other."""

import pytest
import torch

pytest.importorskip("triton")
from ops import kernels
from ops.kernels.matmul.tiles import FEW_ROWS
from tests.ops.kernels.where import DEVICE, MARKS

pytestmark = MARKS
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
CASES = [(BF16, BF16, 16, None), (FP16, FP8, 64, None), (FP32, FP32, 32, None), (BF16, BF16, 128, "int8")]
IN, HEADS, KV_HEADS = 96, 3, 1  # more than a tile of outputs, and not whole tiles


@pytest.mark.parametrize(("dtype", "cache_dtype", "head_dim", "quantization"), CASES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 5, FEW_ROWS.value, FEW_ROWS.value + 1])
def test_one_kernel_gives_the_bits_of_two(
    dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int, quantization: str | None, num_rows: int
) -> None:
    width = (HEADS + 2 * KV_HEADS) * head_dim
    x, matrix, bias = (torch.randn(sizes, device=DEVICE).to(dtype) for sizes in ((num_rows, IN), (width, IN), (width,)))
    weight = kernels.prepare_linear(matrix, quantization)
    positions = torch.randint(0, 40, (num_rows,), device=DEVICE).int()
    slots = torch.randperm(96, device=DEVICE)[:num_rows].int()
    rest = (positions, torch.rand(40, head_dim, device=DEVICE), slots)
    one, two = ([torch.zeros(6, KV_HEADS, 16, head_dim, device=DEVICE).to(cache_dtype) for _ in "kv"] for _ in "12")
    query = kernels.linear_rotary_and_cache(x, weight, bias, *rest, *one)
    assert torch.equal(query, kernels.rotary_and_cache(kernels.linear(x, weight, bias), *rest, *two))
    for got, want in zip(one, two, strict=True):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
        assert got.float().count_nonzero() > num_rows


def test_no_rows_and_too_many_heads() -> None:
    cache = torch.zeros(2, 2, 16, 16, device=DEVICE)
    table, index = torch.zeros(4, 16, device=DEVICE), torch.zeros(0, dtype=torch.int32, device=DEVICE)
    x, weight = torch.zeros(0, 32, device=DEVICE), torch.zeros(6 * 16, 32, device=DEVICE)
    query = kernels.linear_rotary_and_cache(x, weight, None, index, table, index, cache, cache.clone())
    assert query.shape == (0, 2, 16)
    with pytest.raises(ValueError, match="7 heads of 16"):
        wide = torch.zeros(7 * 16, 32, device=DEVICE)
        kernels.linear_rotary_and_cache(x, wide, None, index, table, index, cache, cache.clone())
