from typing import Any

import pytest
import torch

from ops import reference
from parallel.errors import InvalidSharding, UnsupportedModel
from parallel.group import SingleGroup
from parallel.models import build, check_sharding
from parallel.models.qwen2 import Qwen2Config, num_leaves
from parallel.pipeline import Stage
from tests.parallel.alone import Alone


def hf_config(**changes: Any) -> dict[str, Any]:
    """The shape of Qwen2.5-0.5B, with `changes`; None takes a field away."""
    base = {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": 32768,
        "vocab_size": 151936,
    }
    return {name: value for name, value in (base | changes).items() if value is not None}


def test_what_is_read() -> None:
    config = Qwen2Config.from_hf(hf_config())
    assert (config.vocab_size, config.num_layers, config.max_positions) == (151936, 24, 32768)
    assert config.has_tied_embeddings
    assert (config.rope.kind, config.rope.theta) == ("default", 1e6)
    assert (config.layer.head_dim, config.layer.num_leaves, config.layer.has_qkv_bias) == (64, 2, True)
    assert Qwen2Config.from_hf(hf_config(head_dim=32)).layer.head_dim == 32
    assert Qwen2Config.from_hf(hf_config(num_key_value_heads=None)).layer.num_kv_heads == 14
    assert not Qwen2Config.from_hf(hf_config(tie_word_embeddings=None)).has_tied_embeddings
    assert "model.layers.3.self_attn.q_proj.bias" in config.shapes()
    assert "lm_head.weight" not in config.shapes()
    without = Qwen2Config.from_hf(hf_config(attention_bias=False, tie_word_embeddings=False)).shapes()
    assert "model.layers.3.self_attn.q_proj.bias" not in without
    assert without["lm_head.weight"] == (151936, 896)


@pytest.mark.parametrize(
    ("heads", "intermediate", "leaves"), [(14, 4864, 2), (12, 8960, 4), (28, 18944, 4), (40, 13824, 8), (7, 512, 1)]
)
def test_leaves_are_the_largest_power_of_two_up_to_8_that_divides(heads: int, intermediate: int, leaves: int) -> None:
    assert num_leaves(heads, intermediate) == leaves


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architecture LlamaForCausalLM; there is Qwen2ForCausalLM"),
        ({"architectures": None}, "architecture none; there is Qwen2ForCausalLM"),
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported; False is"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types names sliding_attention"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; 'silu' is"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config=.* is not supported; None is"),
        ({"intermediate_size": None, "vocab_size": "many"}, "intermediate_size, vocab_size must be given as integers"),
        ({"num_key_value_heads": 4}, "14 heads cannot share 4 key-value heads evenly"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope type 'longrope' is not supported"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        check_sharding(hf_config(**changes), 1, 1)


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({}, {1, 2}),
        ({"num_attention_heads": 12, "intermediate_size": 8960}, {1, 2, 4}),
        ({"num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 13824}, {1, 2, 4, 8}),
        ({"num_attention_heads": 24, "num_key_value_heads": 3, "intermediate_size": 1024}, {1}),
    ],
)
def test_the_number_of_ranks_must_divide_the_model(changes: dict[str, Any], allowed: set[int]) -> None:
    for tp_size in range(9):
        if tp_size in allowed:
            check_sharding(hf_config(**changes), tp_size, 1)
        else:
            with pytest.raises(InvalidSharding, match=f"tensor_parallel_size={tp_size} .* can be cut into"):
                check_sharding(hf_config(**changes), tp_size, 1)


def test_a_refused_sharding_says_what_would_work() -> None:
    with pytest.raises(InvalidSharding, match=r"cut into 1 or 2 ranks$"):
        check_sharding(hf_config(), 3, 1)
    with pytest.raises(InvalidSharding, match=r"cut into 1 rank only$"):
        check_sharding(hf_config(intermediate_size=4863), 2, 1)
    with pytest.raises(InvalidSharding, match="pipeline_parallel_size=25 exceeds the model's 24 layers; use 1 to 24"):
        check_sharding(hf_config(), 1, 25)
    check_sharding(hf_config(), 2, 24)


def test_build_refuses_the_same() -> None:
    device, dtype = torch.device("cpu"), torch.float32
    with pytest.raises(InvalidSharding):
        build(hf_config(), ops=reference, tp=Alone(0, 4), stage=Stage(0, 1, None), dtype=dtype, device=device)
    with pytest.raises(InvalidSharding):
        stage = Stage(0, 25, SingleGroup())
        build(hf_config(), ops=reference, tp=SingleGroup(), stage=stage, dtype=dtype, device=device)
