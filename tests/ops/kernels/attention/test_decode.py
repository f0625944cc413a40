"""The sizes that attention is launched with; what it computes is in test_paged."""

import pytest
import torch

pytest.importorskip("triton")
from ops.kernels.attention.decode import TENSOR_CORE_ROWS, decode_options
from ops.kernels.attention.prefill import prefill_options
from ops.kernels.attention.softmax import SPLIT

CACHES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


@pytest.mark.parametrize("compute", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", CACHES, ids=str)
def test_tiles_divide_a_split_and_prefill_has_the_same(
    dtype: torch.dtype, head_dim: int, compute: tuple[int, int]
) -> None:
    decode = decode_options(dtype, head_dim, 7, compute, 2, 64)
    assert SPLIT.value % decode["TILE"] == 0, "a split ends within no tile"
    prefill = prefill_options(decode)
    # So that a row goes through the same instructions in both, and has the same bits.
    assert prefill["ROWS"] // prefill["num_warps"] == decode["ROWS"] // decode["num_warps"]
    assert {name: prefill[name] for name in ("TILE", "STAGES")} == {name: decode[name] for name in ("TILE", "STAGES")}


@pytest.mark.parametrize(("group", "rows"), [(1, 16), (7, 16), (17, 32), (64, 64)])
def test_float32_takes_as_many_rows_as_heads_share_a_key(group: int, rows: int) -> None:
    assert decode_options(torch.float32, 64, group, (9, 0), 2, 64)["ROWS"] == rows
    assert decode_options(torch.bfloat16, 64, group, (9, 0), 2, 64)["ROWS"] == TENSOR_CORE_ROWS
