"""Sampling and log probabilities: scans over rows of float32 logits."""

import torch
from torch import Tensor

from ops.checks import logprobs_sizes, sample_sizes
from ops.cpu.library import library
from ops.interface import Draws
from ops.logits.drawn import drawn


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    position: Tensor,
    *,
    draws: Draws = "any",
) -> Tensor:
    """logits [R, V] float32 -> tokens and whether rows had any, [2, R] int32."""
    num_rows, vocab_size = sample_sizes(logits, temperature, top_k, top_p, min_p, seed, choice, position)
    tokens = torch.empty(num_rows, dtype=torch.int32)
    library().squadron_sample(
        logits.data_ptr(),
        num_rows,
        vocab_size,
        temperature.data_ptr(),
        top_k.data_ptr(),
        top_p.data_ptr(),
        min_p.data_ptr(),
        seed.data_ptr(),
        choice.data_ptr(),
        position.data_ptr(),
        tokens.data_ptr(),
        torch.get_num_threads(),
    )
    return drawn(tokens, logits)


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logits [R, V] float32, token_ids [R] int32 -> [R] float32, ranks [R] int32, and the best: [R,
    num_top] int32, float32.
    """
    num_rows, vocab_size = logprobs_sizes(logits, token_ids, num_top)
    if num_rows and (int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size):
        raise ValueError(
            f"token_ids reach from {token_ids.min()} to {token_ids.max()}, the vocabulary to {vocab_size - 1}"
        )
    logprobs, ranks = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int32)
    top_ids, top = torch.empty((num_rows, num_top), dtype=torch.int32), torch.empty((num_rows, num_top))
    library().squadron_token_logprobs(
        logits.data_ptr(),
        num_rows,
        vocab_size,
        token_ids.data_ptr(),
        num_top,
        logprobs.data_ptr(),
        ranks.data_ptr(),
        top_ids.data_ptr(),
        top.data_ptr(),
        torch.get_num_threads(),
    )
    return logprobs, ranks, top_ids, top
