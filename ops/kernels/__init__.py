"""The GPU backend: Triton kernels, whose results are exact.

Exact: an element is computed by the same operations in the same order whatever rows and sequences
there are beside it, and on however many tensor-parallel ranks. `ops.kernels.fast` has the same
kernels with cuBLAS's products, which are not.
"""

from ops.kernels.activation import silu_and_mul
from ops.kernels.attention import (
    HEAD_DIMS,
    copy_blocks,
    linear_rotary_and_cache,
    paged_attention,
    rotary_and_cache,
    swap_blocks,
)
from ops.kernels.logits import apply_penalties, sample, token_logprobs
from ops.kernels.matmul.adapter import adapted_gate_up_silu, adapted_linear, adapted_linear_tree, make_adapter
from ops.kernels.matmul.linear import (
    embedding,
    gate_up_silu,
    linear,
    linear_float32,
    linear_leaves,
    linear_tree,
    prepare_embedding,
    prepare_gate_up,
    prepare_linear,
    prepare_tree_linear,
)
from ops.kernels.matmul.moe import experts_tree, prepare_experts
from ops.kernels.matmul.route import add_gated, route
from ops.kernels.norm import add, add_rms_norm, qk_norm, rms_norm
from ops.kernels.tokens import place_tokens
from ops.reference.logits.mask import apply_mask
from ops.reference.matmul.adapter import make_adapter_slots

NAME = "triton"
EXACT = True
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
