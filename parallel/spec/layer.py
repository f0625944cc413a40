"""The parts of a decoder layer, before it is sharded."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Attention, and an MLP unless the layer has experts."""

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
    """The experts that a layer has instead of an MLP."""

    num_experts: int
    num_chosen: int  # experts a row goes to
    intermediate_size: int  # of an expert
    normalizes: bool  # the chosen ones' probabilities are divided by their sum
    shared_intermediate_size: int  # of the shared expert, which computes every row; 0: there is none
