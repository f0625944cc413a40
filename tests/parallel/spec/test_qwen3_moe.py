from typing import Any

import pytest

from parallel.errors import UnsupportedModel
from parallel.spec.qwen3_moe import read
from tests.parallel.spec.configs import qwen3_moe


@pytest.mark.parametrize("field", ["num_experts", "num_local_experts"])  # transformers 5 writes the second
def test_experts_are_read_by_either_name(field: str) -> None:
    config = read(qwen3_moe(**{"num_experts": None, field: 64}))
    moe = config.moe_of(0)
    assert moe is not None
    assert (moe.num_experts, moe.normalizes, moe.shared_intermediate_size) == (64, True, 0)
    assert (config.layer.has_qkv_bias, config.layer.has_qk_norm) == (False, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias=True is not supported; False is"),
        ({"num_experts": None}, "num_experts=None must be given"),
        ({"num_experts": 0}, "num_experts=0 must be given as positive integers"),
        ({"num_experts": 10**9}, f"num_hidden_layers=24 times {10**9} experts is above 100000, the limit"),
        ({"num_experts": 7}, "num_experts_per_tok=8 exceeds num_experts=7"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob='yes' is neither true nor false"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0 is no positive integer"),
        ({"mlp_only_layers": [24]}, r"mlp_only_layers=\[24\] is no list of layers, 0 to 23"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(qwen3_moe(**changes))
