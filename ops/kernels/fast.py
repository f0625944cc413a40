"""The GPU backend with cuBLAS's matrix products, the order of whose sums depends on the number of
rows: it is not exact.

Everything but products is from `ops.kernels`. Gate and up are cast before the activation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ops.interface import check_shape
from ops.kernels import (
    HEAD_DIMS,
    adapted_gate_up_silu,
    adapted_linear,
    adapted_linear_tree,
    add,
    add_gated,
    add_rms_norm,
    apply_mask,
    apply_penalties,
    copy_blocks,
    embedding,
    experts_tree,
    make_adapter,
    make_adapter_slots,
    paged_attention,
    place_tokens,
    prepare_embedding,
    prepare_experts,
    prepare_gate_up,
    prepare_linear,
    prepare_tree_linear,
    qk_norm,
    rms_norm,
    rotary_and_cache,
    route,
    sample,
    silu_and_mul,
    swap_blocks,
    token_logprobs,
)
from ops.kernels.matmul.linear import TreeWeight

NAME = "triton-fast"
EXACT = False
PUBLISHED = ()
QUANTIZATIONS = ()  # products of quantized weights are exact as well as fast: those of ops.kernels


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, in] dtype -> [T, out] dtype; bias [out] dtype."""
    check_shape("x", x, (None, weight.shape[1]), weight.dtype)
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],), x.dtype)
    return F.linear(x, weight, bias)


def linear_float32(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, in] dtype -> [T, out] float32."""
    check_shape("x", x, (None, weight.shape[1]), weight.dtype)
    if x.dtype == torch.float32 or not x.is_cuda:  # other devices' products have no other output type than the inputs'
        return F.linear(x.float(), weight.float())
    return torch.mm(x, weight.T, out_dtype=torch.float32)


def gate_up_silu(x: Tensor, weight: Tensor) -> Tensor:
    """silu(x @ gate.T) * (x @ up.T); x [T, D] dtype -> [T, I] dtype."""
    return silu_and_mul(linear(x, weight, None))


def linear_rotary_and_cache(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
) -> Tensor:
    """As one op after the other."""
    return rotary_and_cache(linear(x, weight, bias), positions, cos_sin, slot_mapping, key_cache, value_cache)


def linear_tree(x: Tensor, weight: TreeWeight) -> Tensor:
    """x [T, in] dtype -> [T, out] float32, in whatever order."""
    assert isinstance(weight.weight, Tensor), "weights are not quantized here"
    return linear_float32(x, weight.weight)


def linear_leaves(x: Tensor, weight: TreeWeight) -> Tensor:
    """As linear_tree: there are no leaves."""
    return linear_tree(x, weight)


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
