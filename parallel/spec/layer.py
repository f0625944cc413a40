"""What a decoder layer is made of, before it is cut."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Attention, and an MLP unless experts are in its place."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_qkv_bias: bool
    has_qk_norm: bool
    norm_eps: float


@dataclass(frozen=True, slots=True)
class MoEShape:
    """What is in the place of a layer's MLP."""

    num_experts: int
    num_chosen: int  # experts a row goes to
    intermediate_size: int  # of an expert
    normalizes: bool  # the chosen ones' probabilities are divided by their sum
    shared_intermediate_size: int  # of the expert that every row goes to as well; 0: there is none
