import pytest
import torch

from ops.interface import Ops
from tests.ops.exact import dtypes


@dtypes
@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 2), (4, 1), (1, 1)])
def test_qk_norm_is_rms_norm_of_each_query_and_key_head(
    ops: Ops, device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int
) -> None:
    head_dim = 24
    qkv = (torch.randn(7, (heads + 2 * kv_heads) * head_dim, device=device) * 20).to(dtype)
    query_weight, key_weight = (torch.randn(head_dim, device=device).to(dtype) for _ in range(2))
    before = qkv.view(7, -1, head_dim).clone()
    ops.qk_norm(qkv, query_weight, key_weight, kv_heads, 1e-6)
    after = qkv.view(7, -1, head_dim)
    for head in range(heads + kv_heads):
        weight = query_weight if head < heads else key_weight
        assert torch.equal(after[:, head], ops.rms_norm(before[:, head].contiguous(), weight, 1e-6))
    assert torch.equal(after[:, heads + kv_heads :], before[:, heads + kv_heads :])


def test_heads_that_do_not_fit_are_refused(ops: Ops, device: torch.device) -> None:
    with pytest.raises(ValueError, match="qkv has 90 columns"):
        ops.qk_norm(
            torch.randn(2, 90, device=device), torch.ones(32, device=device), torch.ones(32, device=device), 1, 0
        )
