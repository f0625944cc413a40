"""A step as a value: everything the workers need, in flat arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine.sampling_columns import SamplingColumns

NO_RANGES = np.empty((0, 2), np.int32)
NO_FILES = np.empty((0, 5), np.int32)
NO_RUNS = np.empty((0, 3), np.int32)
NO_CHANGES = np.empty((0, 3), np.int32)
NOTHING_DRAFTED = np.empty((0, 6), np.int32)
NO_SETS = np.empty((0, 4), np.int32)
NO_IDS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class ExecuteModelRequest:
    """One step. Workers do, in this order: store, swap out, swap in, copy, write keys and values,
    attend, sample. Fetches go on beside it and later steps, until a worker's answer has them.

    T token rows, of S sequences in order: sequence s has rows query_starts[s]:query_starts[s + 1],
    and its blocks in row table_rows[s] of the block tables, of which each rank has a copy: a step
    brings what has changed in them. R sampled rows. A request that only moves blocks (T = 0) is
    still a step. Block 0 is the null block, which no sequence has.
    """

    epoch: int
    step: int
    input_ids: np.ndarray  # [T] int32
    positions: np.ndarray  # [T] int32
    slot_mapping: np.ndarray  # [T] int32: block_id * block_size + offset, where the row's key and value are written
    query_starts: np.ndarray  # [S + 1] int32
    context_lens: np.ndarray  # [S] int32: tokens in the cache once this step's are written
    sampled_rows: np.ndarray  # [R] int32: token rows; one row may be sampled several times (n > 1)
    sampling: SamplingColumns
    # Input ids not known to the driver yet: for each (r, s), input_ids[r] is the token sampled at
    # row s of the step in `carried_steps`.
    carried_steps: np.ndarray  # [C] int32
    carried_rows: np.ndarray  # [C, 2] int32
    blocks_to_swap_out: np.ndarray  # [*, 2] int32: device block -> host block
    blocks_to_swap_in: np.ndarray  # [*, 2] int32: host block -> device block
    blocks_to_copy: np.ndarray  # [*, 2] int32: device block -> device block
    table_rows: np.ndarray = field(default_factory=lambda: NO_IDS)  # [S] int32
    # (row, column, block) in the order in which they were made, since the step before.
    table_changes: np.ndarray = field(default_factory=lambda: NO_CHANGES)  # [*, 3] int32
    # Not sent: `BlockTables` adds the blocks block_ids[block_starts[s]:block_starts[s + 1]] that
    # hold a sequence's context, in order.
    block_starts: np.ndarray = field(default_factory=lambda: NO_IDS)  # [S + 1] int32
    block_ids: np.ndarray = field(default_factory=lambda: NO_IDS)  # [*] int32
    # Sets of tokens that rows name from this step on (`SamplingColumns.token_sets`): a set's
    # number, how many allowed ids it has, words of a mask of them, and biases. Where all are 0,
    # nobody names the set any more. `set_words` has of each, in order: the allowed ids, the mask,
    # the ids of biases, their values as float32.
    set_changes: np.ndarray = field(default_factory=lambda: NO_SETS)  # [*, 4] int32
    set_words: np.ndarray = field(default_factory=lambda: NO_IDS)  # [*] int32
    awaits_masks: bool = False  # its `StepMasks` follow, for which sampling waits
    returns_tokens: bool = False  # of its rows from the last stage to the first: a later step may carry them
    # Token rows [first, end) whose hidden states are summed.
    pooled_ranges: np.ndarray = field(default_factory=lambda: NO_RANGES)  # [P, 2] int32
    # Token rows [first, end) have the adapter of that number below; ascending, others have none.
    adapter_runs: np.ndarray = field(default_factory=lambda: NO_RUNS)  # [N, 3] int32
    adapter_digests: list[str] = field(default_factory=list)
    adapter_folders: list[str] = field(default_factory=list)  # where workers find those that they lack
    # Each a host block, then the 16 bytes of its content's hash: to and from the rank's files.
    blocks_to_store: np.ndarray = field(default_factory=lambda: NO_FILES)  # [*, 5] int32
    blocks_to_fetch: np.ndarray = field(default_factory=lambda: NO_FILES)  # [*, 5] int32
    # Of each to be fetched: which engine serves it if the folder has it not, or an empty text; none
    # at all where nobody serves any.
    fetch_addresses: list[str] = field(default_factory=list)
    awaits_fetches: bool = False  # give them a moment: there is nothing else to do
    awaits_stores: bool = False  # a worker's answer comes once what it stores is written
    # What the draft model does after sampling, for D of the sequences: (sequence, position of the
    # first token that it computes, how many of `draft_ids` it computes, the sequence's first
    # sampled row, how many of its rows are sampled, and how many tokens are guessed after these).
    # The sequence's blocks have room for all of them.
    drafting: np.ndarray = field(default_factory=lambda: NOTHING_DRAFTED)  # [D, 6] int32
    draft_ids: np.ndarray = field(default_factory=lambda: NO_IDS)  # [*] int32: known tokens, of one after the other


@dataclass(frozen=True, slots=True)
class StepMasks:
    """The late part of a step: which tokens may be sampled, where a grammar says so.

    It depends on tokens that the steps before still sample, and nothing but sampling needs it: the
    step is sent before, and its layers are computed meanwhile.
    """

    epoch: int
    step: int
    mask_starts: np.ndarray  # [R + 1] int32, or [0] if no row has a mask; see `SamplingColumns`
    mask_words: np.ndarray  # int32


# Waits for the masks of a step that awaits some; raises if none can come any more.
LateMasks = Callable[[ExecuteModelRequest], StepMasks]


def none_follow(request: ExecuteModelRequest) -> StepMasks:
    """The `LateMasks` of steps that await none."""
    raise AssertionError(f"step {request.step} awaits masks, and none are sent here")
