"""The tensors that a model's weight files must and may hold, from config.json."""

from cluster.model_sizes import ModelSizes
from cluster.shapes import Experts, Shape, tensor_shapes
from engine.config import ModelConfig


def needed_tensors(model: ModelConfig, sizes: ModelSizes) -> dict[str, tuple[int, ...]]:
    """Name and shape of each; `sizes` are those of the model."""
    has_qk_norm = model.architecture.startswith("Qwen3")
    experts = None
    if sizes.num_experts:
        # How rows choose among them is of no account here.
        experts = Experts(sizes.num_experts, 1, sizes.expert_size, False, sizes.shared_size or None)
    shape = Shape(
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        intermediate_size=sizes.intermediate_size,
        vocab_size=model.vocab_size,
        tie_word_embeddings=_is_tied(model),
        head_dim=model.head_dim,
        has_qk_norm=has_qk_norm,
        experts=experts,
        has_qkv_bias=bool(model.hf_config.get(BIAS[model.architecture], not has_qk_norm)),
        dense_layers=_dense_layers(model) if experts else frozenset(),
    )
    return tensor_shapes(shape)


def unused_tensors(model: ModelConfig) -> frozenset[str]:
    """Those that the files may hold too: a tied head, and the rotary frequencies, which follow from config.json."""
    layers = range(model.num_hidden_layers)
    unused = {f"model.layers.{number}.self_attn.rotary_emb.inv_freq" for number in layers}
    return frozenset(unused | ({"lm_head.weight"} if _is_tied(model) else set()))


# The field that says whether queries, keys and values have biases.
BIAS = {
    "Qwen2ForCausalLM": "attention_bias",
    "Qwen2MoeForCausalLM": "qkv_bias",
    "Qwen3ForCausalLM": "attention_bias",
    "Qwen3MoeForCausalLM": "attention_bias",
}


def _is_tied(model: ModelConfig) -> bool:
    return bool(model.hf_config.get("tie_word_embeddings"))


def _dense_layers(model: ModelConfig) -> frozenset[int]:
    """Those that have no experts, as `read_sizes` has found them to be well told."""
    step, dense = model.hf_config.get("decoder_sparse_step", 1), model.hf_config.get("mlp_only_layers") or []
    return frozenset(number for number in range(model.num_hidden_layers) if number in dense or (number + 1) % step)
