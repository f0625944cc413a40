"""A step as a value: everything the workers need to know of it, in flat arrays."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """How to sample, a row per sampled row [R]; ragged columns as `starts` [R + 1] into flat
    arrays.

    A ragged column that no row uses is empty, its `starts` too ([0]), so that it costs nothing.
    """

    temperature: np.ndarray  # [R] float32, 0 = greedy
    top_k: np.ndarray  # [R] int32, 0 = all
    top_p: np.ndarray  # [R] float32, 1 = all
    min_p: np.ndarray  # [R] float32, 0 = all
    seed: np.ndarray  # [R] uint64
    choice: np.ndarray  # [R] int32, which of a request's n samples
    position: np.ndarray  # [R] int32, the absolute position of the token to be sampled
    presence_penalty: np.ndarray  # [R] float32, 0 = none
    frequency_penalty: np.ndarray  # [R] float32, 0 = none
    repetition_penalty: np.ndarray  # [R] float32, 1 = none
    # 0: no logprobs wanted; 1 + k: those of the sampled token and of the k most likely ones.
    logprob_counts: np.ndarray  # [R] int32
    # Prompt logprobs: the row's token is given (a prompt token), not sampled.
    has_target: np.ndarray  # [R] bool
    target_ids: np.ndarray  # [R] int32
    # Tokens so far, prompt first, of the rows with a penalty: the first history_num_prompt of them
    # are the prompt's.
    history_starts: np.ndarray  # [R + 1] or [0] int32
    history_ids: np.ndarray  # [*] int32
    history_num_prompt: np.ndarray  # [R] or [0] int32
    # Added to logits; -inf bans the token (min_tokens, bad_words).
    bias_starts: np.ndarray  # [R + 1] or [0] int32
    bias_ids: np.ndarray  # [*] int32
    bias_values: np.ndarray  # [*] float32
    # Only these may be sampled, where a row names any.
    allowed_starts: np.ndarray  # [R + 1] or [0] int32
    allowed_ids: np.ndarray  # [*] int32


@dataclass(frozen=True, slots=True)
class ExecuteModelRequest:
    """One step. Workers do, in this order: swap out, swap in, copy, write keys and values, attend,
    sample.

    T token rows, of S sequences one after the other (sequence s owns rows
    query_starts[s]:query_starts[s + 1]), R sampled rows. A request that only moves blocks (T = 0)
    is still a step. Block 0 is the null block: it pads block tables.
    """

    epoch: int
    step: int
    input_ids: np.ndarray  # [T] int32
    positions: np.ndarray  # [T] int32
    slot_mapping: np.ndarray  # [T] int32: block_id * block_size + offset, where the row's key and value are written
    query_starts: np.ndarray  # [S + 1] int32
    context_lens: np.ndarray  # [S] int32: tokens in the cache once this step's are written
    block_tables: np.ndarray  # [S, B] int32
    sampled_rows: np.ndarray  # [R] int32: token rows; one row may be sampled several times (n > 1)
    sampling: SamplingColumns
    # Input ids not known to the driver yet: for each (r, s), input_ids[r] is the token sampled at
    # row s of `carried_step`.
    carried_step: int
    carried_rows: np.ndarray  # [C, 2] int32
    blocks_to_swap_out: np.ndarray  # [*, 2] int32: device block -> host block
    blocks_to_swap_in: np.ndarray  # [*, 2] int32: host block -> device block
    blocks_to_copy: np.ndarray  # [*, 2] int32: device block -> device block
