from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ops import reference
from parallel.groups.group import Group, SingleGroup
from parallel.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from tests.parallel.alone import Alone, TensorWeights
from tests.parallel.ranks import run_ranks

HIDDEN, HEAD_DIM = 48, 8


def qkv_weights(heads: int, kv_heads: int) -> TensorWeights:
    sizes = {"q_proj": heads * HEAD_DIM, "k_proj": kv_heads * HEAD_DIM, "v_proj": kv_heads * HEAD_DIM}
    weights = {f"attn.{name}.weight": torch.randn(size, HIDDEN) for name, size in sizes.items()}
    return TensorWeights(weights | {f"attn.{name}.bias": torch.randn(size) for name, size in sizes.items()})


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 4), (8, 2), (4, 1)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_rank_has_its_heads_and_the_key_value_heads_that_they_read(
    size: int, heads: int, kv_heads: int, has_bias: bool
) -> None:
    weights = qkv_weights(heads, kv_heads)
    x = torch.randn(5, HIDDEN)
    projected = {
        name: x @ weights.tensors[f"attn.{name}.weight"].T + has_bias * weights.tensors[f"attn.{name}.bias"]
        for name in ("q_proj", "k_proj", "v_proj")
    }
    q, k, v = (out.view(5, -1, HEAD_DIM) for out in projected.values())
    for rank in range(size):
        layer = QKVParallelLinear(heads, kv_heads, HEAD_DIM, has_bias=has_bias, ops=reference, group=Alone(rank, size))
        layer.load(weights, "attn")
        got = layer(x).view(5, -1, HEAD_DIM)
        assert got.shape[1] == layer.num_heads + 2 * layer.num_kv_heads
        queries, keys, values = got.split([layer.num_heads, layer.num_kv_heads, layer.num_kv_heads], dim=1)
        for local in range(layer.num_heads):
            head = rank * layer.num_heads + local
            shared, kv_head = local // (layer.num_heads // layer.num_kv_heads), head // (heads // kv_heads)
            torch.testing.assert_close(queries[:, local], q[:, head])
            torch.testing.assert_close(keys[:, shared], k[:, kv_head])
            torch.testing.assert_close(values[:, shared], v[:, kv_head])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_gate_and_up_are_cut_alike(size: int) -> None:
    weights = TensorWeights({f"mlp.{name}.weight": torch.randn(40, HIDDEN) for name in ("gate_proj", "up_proj")})
    x = torch.randn(5, HIDDEN)
    gate, up = (x @ weight.T for weight in weights.tensors.values())
    parts = []
    for rank in range(size):
        layer = MergedColumnParallelLinear(40, ops=reference, group=Alone(rank, size))
        layer.load(weights, "mlp")
        parts.append(layer(x))
    torch.testing.assert_close(torch.cat(parts, 1), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_parallel_sums_have_the_same_bits_on_any_number_of_ranks(dtype: torch.dtype) -> None:
    weights = TensorWeights({"down.weight": torch.randn(HIDDEN, 512).to(dtype)}, dtype)
    x = torch.randn(5, 512).to(dtype)
    whole = RowParallelLinear(512, num_leaves=8, ops=reference, group=SingleGroup())
    whole.load(weights, "down")
    want = whole(x)
    torch.testing.assert_close(want, x.float() @ weights.tensors["down.weight"].float().T, rtol=1e-5, atol=1e-4)
    for size in (2, 4):

        def compute(tp: Alone, _: object) -> torch.Tensor:
            layer = RowParallelLinear(512, num_leaves=8, ops=reference, group=tp)
            layer.load(weights, "down")
            return layer(x[:, layer.part].contiguous())

        for got in run_ranks(size, compute):
            assert got.dtype == torch.float32
            assert torch.equal(got, want)
    for rank in range(8):
        one = RowParallelLinear(512, num_leaves=8, ops=reference, group=Alone(rank, 8))
        assert (one.part, one.num_leaves) == (slice(64 * rank, 64 * rank + 64), 1)


def test_one_rank_alone_leaves_the_leaves_to_the_norm() -> None:
    weights = TensorWeights({"down.weight": torch.randn(HIDDEN, 512)})
    x = torch.randn(5, 512)
    ops: Any = SimpleNamespace(
        prepare_tree_linear=reference.prepare_tree_linear,
        linear_tree=reference.linear_tree,
        linear_leaves=lambda x, weight: reference.linear_tree(x, weight)[None],
    )

    def update(tp: Group, _: object) -> torch.Tensor:
        layer = RowParallelLinear(512, num_leaves=8, ops=ops, group=tp)
        layer.load(weights, "down")
        return layer.update(x[:, layer.part].contiguous())

    leaves = update(SingleGroup(), None)
    assert leaves.shape == (1, 5, HIDDEN)
    for got in run_ranks(2, update):
        assert torch.equal(got, leaves[0])
