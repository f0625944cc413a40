from typing import Any

import pytest

from parallel.errors import UnsupportedModel
from parallel.spec.qwen2_moe import read
from tests.parallel.spec.configs import qwen2_moe


def test_experts_and_the_shared_one_are_read() -> None:
    config = read(qwen2_moe(mlp_only_layers=[3], decoder_sparse_step=2))
    moe = config.moe_of(5)
    assert moe is not None
    assert (moe.num_experts, moe.num_chosen, moe.intermediate_size, moe.normalizes) == (60, 4, 1408, False)
    assert [index for index in range(8) if config.moe_of(index)] == [1, 5, 7]
    shapes = config.shapes()
    assert shapes["model.layers.5.mlp.gate.weight"] == (60, 896)
    assert shapes["model.layers.5.mlp.experts.59.down_proj.weight"] == (896, 1408)
    assert shapes["model.layers.5.mlp.shared_expert.up_proj.weight"] == (5632, 896)
    assert shapes["model.layers.5.mlp.shared_expert_gate.weight"] == (1, 896)
    assert shapes["model.layers.3.mlp.gate_proj.weight"] == (4864, 896)


def test_the_biases_of_attention_can_be_left_out() -> None:
    bias = "model.layers.5.self_attn.q_proj.bias"
    assert bias in read(qwen2_moe()).shapes()
    assert bias not in read(qwen2_moe(qkv_bias=False)).shapes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp_only_layers": "all"}, "mlp_only_layers='all' is no list of layers"),
        ({"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size=None must be given"),
        ({"moe_intermediate_size": 1.5}, "moe_intermediate_size=1.5 must be given"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; 'silu' is"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(qwen2_moe(**changes))
