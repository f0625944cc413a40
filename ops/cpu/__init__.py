"""The CPU backend: C++ kernels, compiled for the best of a few instruction sets, whose results are
exact.

Exact: an element is computed by the same operations in the same order whatever rows, sequences,
threads and tensor-parallel ranks there are beside it. ISA is the level in use; bits may differ
between levels. Moves of blocks and tokens are not worth a kernel: they are the reference's
functions.
"""

from ops.cpu.activation import silu_and_mul
from ops.cpu.attention.paged import HEAD_DIMS, paged_attention
from ops.cpu.attention.rotary import linear_rotary_and_cache, rotary_and_cache
from ops.cpu.library import KernelsUnavailable, isa, unavailable_reason
from ops.cpu.logits.mask import apply_mask
from ops.cpu.logits.penalties import apply_penalties
from ops.cpu.logits.sampling import sample, token_logprobs
from ops.cpu.matmul.adapter import (
    adapted_gate_up_silu,
    adapted_linear,
    adapted_linear_tree,
    make_adapter,
    make_adapter_slots,
)
from ops.cpu.matmul.linear import (
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
from ops.cpu.matmul.moe import add_gated, experts_tree, prepare_experts, route
from ops.cpu.norm import add, add_rms_norm, qk_norm, rms_norm
from ops.reference.attention.blocks import copy_blocks, place_tokens, swap_blocks

NAME = "cpu"
EXACT = True
QUANTIZATIONS = ("int8", "int4")
PUBLISHED = ("int4", "int8", "fp8", "w8a8")


def __getattr__(name: str) -> str:
    """ISA is computed on first access, because that may compile the kernels."""
    if name == "ISA":
        return isa()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "EXACT",
    "HEAD_DIMS",
    "ISA",
    "NAME",
    "PUBLISHED",
    "QUANTIZATIONS",
    "KernelsUnavailable",
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
    "unavailable_reason",
]
