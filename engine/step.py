"""A step as a value: everything the workers need, in flat arrays."""

from dataclasses import dataclass

import numpy as np

from engine.sampling_columns import SamplingColumns


@dataclass(frozen=True, slots=True)
class ExecuteModelRequest:
    """One step. Workers do, in this order: swap out, swap in, copy, write keys and values, attend,
    sample.

    T token rows, of S sequences in order (sequence s owns rows query_starts[s]:query_starts[s +
    1]), R sampled rows. A request that only moves blocks (T = 0) is still a step. Block 0 is the
    null block: it pads block tables.
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
