from typing import Any

import pytest
import torch

from ops import reference
from parallel.decoder import Decoder
from parallel.errors import InvalidSharding, UnsupportedModel
from parallel.groups.group import SingleGroup
from parallel.groups.pipeline import Stage
from parallel.spec import read
from tests.parallel.alone import Alone
from tests.parallel.spec.configs import hf_config, qwen2_moe, qwen3, qwen3_moe


def test_what_is_read() -> None:
    config = read(hf_config())
    assert (config.vocab_size, config.num_layers, config.max_positions) == (151936, 24, 32768)
    assert config.has_tied_embeddings
    assert (config.rope.kind, config.rope.theta) == ("default", 1e6)
    assert (config.layer.head_dim, config.num_leaves, config.layer.has_qkv_bias) == (64, 2, True)
    assert read(hf_config(head_dim=32)).layer.head_dim == 32
    assert read(hf_config(num_key_value_heads=None)).layer.num_kv_heads == 14
    assert not read(hf_config(tie_word_embeddings=None)).has_tied_embeddings
    assert "model.layers.3.self_attn.q_proj.bias" in config.shapes()
    assert "lm_head.weight" not in config.shapes()
    without = read(hf_config(attention_bias=False, tie_word_embeddings=False)).shapes()
    assert "model.layers.3.self_attn.q_proj.bias" not in without
    assert without["lm_head.weight"] == (151936, 896)


@pytest.mark.parametrize(
    ("heads", "intermediate", "leaves"), [(14, 4864, 2), (12, 8960, 4), (28, 18944, 4), (40, 13824, 8), (7, 512, 1)]
)
def test_leaves_are_the_largest_power_of_two_up_to_8_that_divides(heads: int, intermediate: int, leaves: int) -> None:
    changes = {"num_attention_heads": heads, "num_key_value_heads": 1, "intermediate_size": intermediate}
    assert read(hf_config(**changes)).num_leaves == leaves


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architecture LlamaForCausalLM; there is Qwen2ForCausalLM"),
        ({"architectures": None}, "architecture none; there is Qwen2ForCausalLM"),
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported; False is"),
        (
            {"dual_chunk_attention_config": {"chunk_size": 262144, "original_max_position_embeddings": 262144}},
            "full attention, which the model was trained with for 262144 tokens",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types names sliding_attention"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types names chunked_attention"),
        ({"layer_types": 2}, "layer_types names 2"),
        ({"architectures": "Qwen2ForCausalLM"}, "architectures='Qwen2ForCausalLM' is no list of names"),
        ({"architectures": True}, "architectures=True is no list of names"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false' is not supported"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps='1e-6' is no number from 0 to 1"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan is no number from 0 to 1"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; 'silu' is"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "by bitsandbytes, which is not supported"),
        (
            {"intermediate_size": None, "vocab_size": "many"},
            "intermediate_size=None, vocab_size='many' must be given as positive integers",
        ),
        ({"num_hidden_layers": 10**30}, f"num_hidden_layers={10**30} is above 100000, the limit"),
        ({"num_key_value_heads": 4}, "14 heads cannot share 4 key-value heads evenly"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope type 'longrope' is not supported"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(hf_config(**changes)).check_sharding(1, 1)


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
            read(hf_config(**changes)).check_sharding(tp_size, 1)
        else:
            with pytest.raises(InvalidSharding, match=f"tensor_parallel_size={tp_size} .* can be cut into"):
                read(hf_config(**changes)).check_sharding(tp_size, 1)


def test_a_refused_sharding_says_what_would_work() -> None:
    with pytest.raises(InvalidSharding, match=r"cut into 1 or 2 ranks$"):
        read(hf_config()).check_sharding(3, 1)
    with pytest.raises(InvalidSharding, match=r"cut into 1 rank only$"):
        read(hf_config(intermediate_size=4863)).check_sharding(2, 1)
    with pytest.raises(InvalidSharding, match="pipeline_parallel_size=25 exceeds the model's 24 layers; use 1 to 24"):
        read(hf_config()).check_sharding(1, 25)
    read(hf_config()).check_sharding(2, 24)


def test_a_decoder_refuses_the_same() -> None:
    device, dtype = torch.device("cpu"), torch.float32
    with pytest.raises(InvalidSharding):
        Decoder(read(hf_config()), ops=reference, tp=Alone(0, 4), stage=Stage(0, 1, None), dtype=dtype, device=device)
    with pytest.raises(InvalidSharding):
        stage = Stage(0, 25, SingleGroup())
        Decoder(read(hf_config()), ops=reference, tp=SingleGroup(), stage=stage, dtype=dtype, device=device)


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        (qwen3(num_key_value_heads=8), {1, 2, 4, 8}),
        (qwen2_moe(num_key_value_heads=16), {1, 2, 4}),  # of 60 experts
        (qwen2_moe(num_experts=64, shared_expert_intermediate_size=2 * 2816 + 2), {1, 2}),
        (qwen3_moe(num_key_value_heads=4), {1, 2, 4, 8}),
        (qwen3_moe(intermediate_size=4863), {1, 2, 4, 8}),  # no layer has them
        (qwen3_moe(intermediate_size=4866, mlp_only_layers=[0]), {1, 2}),
        (qwen3_moe(intermediate_size=4866, decoder_sparse_step=2), {1, 2}),
        (qwen3_moe(num_experts=11), {1}),
    ],
)
def test_experts_are_dealt_out_evenly_too(config: dict[str, Any], allowed: set[int]) -> None:
    for tp_size in range(1, 9):
        if tp_size in allowed:
            read(config).check_sharding(tp_size, 1)
        else:
            with pytest.raises(InvalidSharding, match=f"tensor_parallel_size={tp_size} .* can be cut into"):
                read(config).check_sharding(tp_size, 1)


def test_a_refused_sharding_names_the_experts() -> None:
    with pytest.raises(
        InvalidSharding, match=r"does not divide 16 attention heads, 60 experts, 5632 columns of the sha"
    ):
        read(qwen2_moe()).check_sharding(8, 1)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_checkpoint_may_hold_a_tied_head_too(is_tied: bool) -> None:
    spec = read(hf_config(tie_word_embeddings=is_tied))
    assert ("lm_head.weight" in spec.unused) == is_tied
    assert ("lm_head.weight" in spec.shapes()) != is_tied
