"""Argument checks for every backend: each raises ValueError naming the mismatch, and returns the
sizes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ops.interface import AdapterPart, Weight, check_shape

NUM_LEAVES = (1, 2, 4, 8, 16, 32, 64, 128)


def sample_sizes(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    position: Tensor,
) -> torch.Size:
    """Rows and tokens, of the arguments of `sample`."""
    check_shape("logits", logits, (None, None), torch.float32)
    rows = logits.shape[:1]
    for name, column in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        check_shape(name, column, rows, torch.float32)
    for name, column in (("top_k", top_k), ("choice", choice), ("position", position)):
        check_shape(name, column, rows, torch.int32)
    check_shape("seed", seed, rows, torch.int64)
    return logits.shape


def mask_sizes(logits: Tensor, mask_starts: Tensor, mask_words: Tensor) -> torch.Size:
    """Rows and tokens, of the arguments of `apply_mask`."""
    check_shape("logits", logits, (None, None), torch.float32)
    check_shape("mask_starts", mask_starts, (logits.shape[0] + 1,), torch.int32)
    check_shape("mask_words", mask_words, (None,), torch.int32)
    if mask_words.shape[0] % -(-logits.shape[1] // 32):
        raise ValueError(f"{mask_words.shape[0]} words are no masks of {logits.shape[1]} tokens, 32 a word")
    return logits.shape


def penalty_sizes(
    logits: Tensor,
    history_ids: Tensor,
    history_starts: Tensor,
    history_lengths: Tensor,
    history_num_prompt: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> torch.Size:
    """Rows and tokens, of the arguments of `apply_penalties`."""
    check_shape("logits", logits, (None, None), torch.float32)
    check_shape("history_ids", history_ids, (None,), torch.int32)
    rows = logits.shape[:1]
    for name, column in (("starts", history_starts), ("lengths", history_lengths), ("num_prompt", history_num_prompt)):
        check_shape(f"history_{name}", column, rows, torch.int32)
    for name, column in (("presence", presence), ("frequency", frequency), ("repetition", repetition)):
        check_shape(name, column, rows, torch.float32)
    return logits.shape


def logprobs_sizes(logits: Tensor, token_ids: Tensor, num_top: int) -> torch.Size:
    """Rows and tokens, of the arguments of `token_logprobs`."""
    check_shape("logits", logits, (None, None), torch.float32)
    check_shape("token_ids", token_ids, logits.shape[:1], torch.int32)
    if not 0 <= num_top <= logits.shape[1]:
        raise ValueError(f"num_top={num_top} of {logits.shape[1]} tokens cannot be named")
    return logits.shape


def qk_norm_sizes(qkv: Tensor, query_weight: Tensor, key_weight: Tensor, num_kv_heads: int) -> tuple[int, int, int]:
    """Rows, query heads and head_dim, of the arguments of `qk_norm`."""
    check_shape("qkv", qkv, (None, None))
    check_shape("query_weight", query_weight, (None,), qkv.dtype)
    check_shape("key_weight", key_weight, query_weight.shape, qkv.dtype)
    rows, width = qkv.shape
    head_dim = query_weight.shape[0]
    num_heads = width // head_dim - 2 * num_kv_heads
    if width % head_dim or num_heads < 1:
        raise ValueError(f"qkv has {width} columns; heads of {head_dim}, {num_kv_heads} of keys, do not fit them")
    return rows, num_heads, head_dim


def route_sizes(logits: Tensor, num_chosen: int) -> torch.Size:
    """Rows and experts, of the arguments of `route`."""
    check_shape("logits", logits, (None, None), torch.float32)
    if not 1 <= num_chosen <= logits.shape[1]:
        raise ValueError(f"{num_chosen} of {logits.shape[1]} experts cannot be chosen")
    return logits.shape


def gated_sizes(gate: Tensor, x: Tensor, total: Tensor) -> torch.Size:
    """Rows and columns, of the arguments of `add_gated`."""
    check_shape("x", x, (None, None), torch.float32)
    check_shape("gate", gate, (x.shape[0], 1), torch.float32)
    check_shape("total", total, x.shape, torch.float32)
    return x.shape


def token_sizes(
    input_ids: Tensor, sources: Tensor, drawn: Tensor, slots: Tensor | None, token_ids: Tensor | None
) -> int:
    """Rows, of the arguments of `place_tokens`."""
    check_shape("input_ids", input_ids, (None,), torch.int32)
    check_shape("sources", sources, input_ids.shape[:1], torch.int32)
    check_shape("drawn", drawn, (None,), torch.int32)
    if (slots is None) != (token_ids is None):
        raise ValueError("slots and token_ids are given together")
    if slots is not None and token_ids is not None:
        check_shape("slots", slots, input_ids.shape[:1], torch.int32)
        check_shape("token_ids", token_ids, (None,), torch.int32)
    return input_ids.shape[0]


def check_weight(weight: Weight) -> None:
    """A matrix."""
    check_shape("weight", weight if isinstance(weight, Tensor) else weight.codes, (None, None))


def check_gate_up(weight: Weight) -> None:
    """Of prepare_gate_up."""
    check_weight(weight)
    if weight.shape[0] % 2:
        raise ValueError(f"weight has {weight.shape[0]} rows; gate and up have as many each")


def adapter_sizes(parts: Sequence[AdapterPart], num_outputs: int, num_inputs: int, dtype: torch.dtype) -> None:
    """Of make_adapter."""
    if not parts:
        raise ValueError("an adapter has one part or more")
    for part in parts:
        check_shape("down", part.down, (None, num_inputs), dtype)
        check_shape("up", part.up, (len(range(num_outputs)[part.outputs]), part.down.shape[0]), dtype)


def check_leaves(weight: Weight, num_leaves: int) -> None:
    """Of prepare_tree_linear."""
    check_weight(weight)
    if num_leaves not in NUM_LEAVES or weight.shape[1] % num_leaves:
        raise ValueError(f"{weight.shape[1]} inputs cannot be cut into {num_leaves} leaves, a power of two up to 128")


def check_expert_leaves(count: int, num_leaves: int) -> None:
    """Of prepare_experts."""
    if num_leaves not in NUM_LEAVES or not count or count % num_leaves:
        raise ValueError(f"{count} experts cannot be cut into {num_leaves} leaves, a power of two up to 128")
