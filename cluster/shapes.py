"""The shapes of some published models, and the tensors that a model of a shape has."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """What every layer has in the place of an MLP."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    shared_expert_intermediate_size: int | None = None  # of the one that every row goes to as well


@dataclass(frozen=True, slots=True)
class Shape:
    """Names are config.json's."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    head_dim: int | None = None  # None: the hidden size over the heads
    has_qk_norm: bool = False  # as Qwen3 has, and then no biases
    experts: Experts | None = None
    has_qkv_bias: bool | None = None  # None: unless it has norms there
    dense_layers: frozenset[int] = frozenset()  # those that have an MLP, where the others have experts

    @property
    def model_type(self) -> str:
        return ("qwen3" if self.has_qk_norm else "qwen2") + ("_moe" if self.experts else "")


SHAPES = {
    "qwen2.5-0.5b": Shape(896, 24, 14, 2, 4864, 151936, True),
    "qwen2.5-1.5b": Shape(1536, 28, 12, 2, 8960, 151936, True),
    "qwen2.5-7b": Shape(3584, 28, 28, 4, 18944, 152064, False),
    "qwen3-0.6b": Shape(1024, 28, 16, 8, 3072, 151936, True, 128, True),
    "qwen3-4b": Shape(2560, 36, 32, 8, 9728, 151936, True, 128, True),
    "qwen1.5-moe-a2.7b": Shape(2048, 24, 16, 16, 5632, 151936, False, None, False, Experts(60, 4, 1408, False, 5632)),
    "qwen3-30b-a3b": Shape(2048, 48, 32, 4, 6144, 151936, False, 128, True, Experts(128, 8, 768, True)),
    # No published model has it: experts for a machine that the others are too large for.
    "qwen3-moe-small": Shape(1024, 12, 16, 4, 3072, 32000, True, 64, True, Experts(32, 4, 512, True)),
}
ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of that shape, in the order in which they are written."""
    hidden = shape.hidden_size
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for number in range(shape.num_hidden_layers):
        layer = {
            "input_layernorm.weight": (hidden,),
            **_attention(shape),
            "post_attention_layernorm.weight": (hidden,),
            **_mlp_or_moe(shape, number),
        }
        tensors |= {f"model.layers.{number}.{name}": size for name, size in layer.items()}
    tensors["model.norm.weight"] = (hidden,)
    if not shape.tie_word_embeddings:
        tensors["lm_head.weight"] = (shape.vocab_size, hidden)
    return tensors


def _attention(shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden = shape.hidden_size
    head_dim = shape.head_dim or hidden // shape.num_attention_heads
    queries, keys = shape.num_attention_heads * head_dim, shape.num_key_value_heads * head_dim
    has_bias = not shape.has_qk_norm if shape.has_qkv_bias is None else shape.has_qkv_bias
    tensors: dict[str, tuple[int, ...]] = {}
    for name, width in (("q", queries), ("k", keys), ("v", keys)):
        tensors[f"self_attn.{name}_proj.weight"] = (width, hidden)
        if has_bias:
            tensors[f"self_attn.{name}_proj.bias"] = (width,)
    tensors["self_attn.o_proj.weight"] = (hidden, queries)
    if shape.has_qk_norm:
        tensors |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    return tensors


def _mlp_or_moe(shape: Shape, number: int) -> dict[str, tuple[int, ...]]:
    if shape.experts is None or number in shape.dense_layers:
        return _mlp("mlp", shape.hidden_size, shape.intermediate_size)
    return _moe(shape.hidden_size, shape.experts)


def _mlp(prefix: str, hidden: int, intermediate: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (intermediate, hidden),
        f"{prefix}.up_proj.weight": (intermediate, hidden),
        f"{prefix}.down_proj.weight": (hidden, intermediate),
    }


def _moe(hidden: int, experts: Experts) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (experts.num_experts, hidden)}
    for index in range(experts.num_experts):
        tensors |= _mlp(f"mlp.experts.{index}", hidden, experts.moe_intermediate_size)
    if experts.shared_expert_intermediate_size is not None:
        tensors |= _mlp("mlp.shared_expert", hidden, experts.shared_expert_intermediate_size)
        tensors["mlp.shared_expert_gate.weight"] = (1, hidden)
    return tensors
