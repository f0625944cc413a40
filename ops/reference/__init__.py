"""Plain torch: the specification that every other backend is tested against, on any device.

Products and sums are float32 and each result is cast once. EXACT is false because torch's matrix
products take their sums in an order that depends on the number of rows, and of threads: a row's
last bits depend on the rows beside it.
"""

from ops.reference.activation import gate_up_silu, prepare_gate_up, silu_and_mul
from ops.reference.attention.blocks import copy_blocks, place_tokens, swap_blocks
from ops.reference.attention.paged import HEAD_DIMS, paged_attention
from ops.reference.attention.rotary import linear_rotary_and_cache, rotary_and_cache
from ops.reference.logits.logprobs import token_logprobs
from ops.reference.logits.mask import apply_mask
from ops.reference.logits.penalties import apply_penalties
from ops.reference.logits.sampling import sample
from ops.reference.matmul.adapter import (
    adapted_gate_up_silu,
    adapted_linear,
    adapted_linear_tree,
    make_adapter,
    make_adapter_slots,
)
from ops.reference.matmul.linear import (
    embedding,
    linear,
    linear_float32,
    linear_leaves,
    linear_tree,
    prepare_embedding,
    prepare_linear,
    prepare_tree_linear,
)
from ops.reference.matmul.moe import add_gated, experts_tree, prepare_experts, route
from ops.reference.norm import add, add_rms_norm, qk_norm, rms_norm

NAME = "reference"
EXACT = False
QUANTIZATIONS = ("int8", "int4", "fp8")
PUBLISHED = ("int4", "int8", "fp8", "w8a8")

__all__ = [
    "EXACT",
    "HEAD_DIMS",
    "NAME",
    "PUBLISHED",
    "QUANTIZATIONS",
    "adapted_gate_up_silu",
    "adapted_linear",
    "adapted_linear_tree",
    "add",
    "add_gated",
    "add_rms_norm",
    "apply_mask",
    "apply_penalties",
    "copy_blocks",
    "embedding",
    "experts_tree",
    "gate_up_silu",
    "linear",
    "linear_float32",
    "linear_leaves",
    "linear_rotary_and_cache",
    "linear_tree",
    "make_adapter",
    "make_adapter_slots",
    "paged_attention",
    "place_tokens",
    "prepare_embedding",
    "prepare_experts",
    "prepare_gate_up",
    "prepare_linear",
    "prepare_tree_linear",
    "qk_norm",
    "rms_norm",
    "rotary_and_cache",
    "route",
    "sample",
    "silu_and_mul",
    "swap_blocks",
    "token_logprobs",
]
