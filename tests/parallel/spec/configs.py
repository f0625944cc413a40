"""config.json of models of each architecture, as dictionaries."""

from typing import Any


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


def qwen3(**changes: Any) -> dict[str, Any]:
    """The shape of Qwen3-0.6B."""
    return hf_config(**({"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 16, "head_dim": 128} | changes))


def qwen2_moe(**changes: Any) -> dict[str, Any]:
    """The shape of Qwen1.5-MoE-A2.7B."""
    sizes = {"num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    shared = {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 5632}
    return hf_config(**(sizes | shared | changes))


def qwen3_moe(**changes: Any) -> dict[str, Any]:
    """The shape of Qwen3-30B-A3B."""
    sizes = {"num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    return hf_config(**({"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True} | sizes | changes))
