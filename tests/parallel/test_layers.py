import pytest
import torch
from torch import Tensor

from ops import reference
from ops.interface import AttentionMetadata
from parallel.groups.group import Group, SingleGroup
from parallel.layers import DecoderLayer, RMSNorm
from parallel.mlp import GatedMLP
from parallel.moe import MoE
from parallel.rotary import cos_sin_table
from parallel.spec.layer import LayerShape, MoEShape
from parallel.spec.rope import Rope
from tests.parallel.alone import TensorWeights
from tests.parallel.ranks import run_ranks

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, TOKENS = 48, 64, 8, 4, 16, 13
EXPERTS = MoEShape(8, 2, 32, normalizes=True, shared_intermediate_size=0)


def shape(*, has_qkv_bias: bool, has_qk_norm: bool) -> LayerShape:
    return LayerShape(HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, has_qkv_bias, has_qk_norm, 1e-6)


def random_weights(moe: MoEShape | None) -> TensorWeights:
    heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    sizes = {f"self_attn.{name}_proj": (count * HEAD_DIM, HIDDEN) for name, count in heads.items()}
    sizes["self_attn.o_proj"] = (HIDDEN, HEADS * HEAD_DIM)
    mlps = {"mlp": INNER}
    if moe is not None:
        mlps = {f"mlp.experts.{index}": moe.intermediate_size for index in range(moe.num_experts)}
    for mlp, inner in mlps.items():
        sizes |= {f"{mlp}.gate_proj": (inner, HIDDEN), f"{mlp}.up_proj": (inner, HIDDEN)}
        sizes[f"{mlp}.down_proj"] = (HIDDEN, inner)
    if moe is not None:
        sizes["mlp.gate"] = (moe.num_experts, HIDDEN)
    tensors = {f"layer.{name}.weight": torch.randn(size) / 5 for name, size in sizes.items()}
    tensors |= {f"layer.self_attn.{name}_proj.bias": torch.randn(sizes[f"self_attn.{name}_proj"][0]) for name in "qkv"}
    norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    norms |= {f"self_attn.{name}_norm": HEAD_DIM for name in "qk"}
    return TensorWeights(tensors | {f"layer.{name}.weight": torch.rand(size) + 0.5 for name, size in norms.items()})


def run(layer: DecoderLayer, update: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's update, and the residual stream that it leaves, for one whole sequence."""
    positions = torch.arange(TOKENS, dtype=torch.int32)
    cache = torch.zeros(2, 2, layer.qkv.num_kv_heads, 16, HEAD_DIM)
    metadata = AttentionMetadata(
        query_starts=torch.tensor([0, TOKENS], dtype=torch.int32),
        context_lens=torch.tensor([TOKENS], dtype=torch.int32),
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        slot_mapping=16 + positions,
        max_query_len=TOKENS,
        max_context_len=TOKENS,
    )
    cos_sin = cos_sin_table(Rope("default", 1e4, {}, 64), HEAD_DIM, 64)
    residual = residual.clone()
    return layer(update, residual, positions, cos_sin, (cache[0], cache[1]), metadata), residual


@pytest.mark.parametrize("moe", [None, EXPERTS], ids=["mlp", "experts"])
@pytest.mark.parametrize(("has_qkv_bias", "has_qk_norm"), [(True, False), (False, True)], ids=["biases", "qk norms"])
def test_all_ranks_have_the_update_of_one(has_qkv_bias: bool, has_qk_norm: bool, moe: MoEShape | None) -> None:
    weights, residual = random_weights(moe), torch.randn(TOKENS, HIDDEN)
    wanted = shape(has_qkv_bias=has_qkv_bias, has_qk_norm=has_qk_norm)

    def compute(tp: Group, _: Group) -> tuple[Tensor, Tensor]:
        layer = DecoderLayer(wanted, moe, num_leaves=4, ops=reference, group=tp)
        layer.load(weights, "layer")
        assert isinstance(layer.mlp, GatedMLP if moe is None else MoE)
        assert (layer.qk_norm is not None) == has_qk_norm
        return run(layer, None, residual)

    whole = run_ranks(1, compute)[0]
    for size in (2, 4):
        for update, left in run_ranks(size, compute):
            torch.testing.assert_close(update, whole[0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(left, whole[1], rtol=1e-5, atol=1e-5)


def test_the_update_of_the_layer_before_is_added_first() -> None:
    layer = DecoderLayer(
        shape(has_qkv_bias=True, has_qk_norm=False), None, num_leaves=4, ops=reference, group=SingleGroup()
    )
    layer.load(random_weights(None), "layer")
    residual, update = torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, HIDDEN)
    got, left = run(layer, update, residual)
    want, wanted_left = run(layer, None, residual + update)
    assert torch.equal(got, want)
    assert torch.equal(left, wanted_left)
    assert not torch.equal(left, residual + update), "attention is added within the layer"


def test_a_norm_adds_and_norms_in_one_pass() -> None:
    norm = RMSNorm(1e-6, ops=reference)
    norm.load(TensorWeights({"norm.weight": torch.rand(HIDDEN)}), "norm")
    x, update = torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, HIDDEN)
    want = torch.nn.functional.rms_norm(x + update, (HIDDEN,), norm.weight, 1e-6)
    torch.testing.assert_close(norm(x + update), want)
    torch.testing.assert_close(norm.add(update, residual := x.clone()), want)
    assert torch.equal(residual, x + update)
