"""The shapes of some published models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts that each layer has instead of an MLP."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    shared_expert_intermediate_size: int | None = None  # of the shared expert, which computes every row


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
    has_qk_norm: bool = False  # as in Qwen3, which then has no biases
    experts: Experts | None = None

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
    # Not a published model: experts for machines on which the others do not fit.
    "qwen3-moe-small": Shape(1024, 12, 16, 4, 3072, 32000, True, 64, True, Experts(32, 4, 512, True)),
}
# By model_type, the name of the class in config.json.
CLASS_NAMES = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
