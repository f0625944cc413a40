"""A step's arrays on the device, as the layers read them."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.step import ExecuteModelRequest
from ops.interface import AttentionMetadata


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What a forward pass reads, on the device."""

    input_ids: Tensor | None  # [T] int32, on the first stage
    residual: Tensor | None  # [T, D] dtype of the stage before, elsewhere; is written to
    positions: Tensor  # [T] int32
    metadata: AttentionMetadata


def block_tables(request: ExecuteModelRequest, num_rows: int | None = None, *, least_width: int = 0) -> np.ndarray:
    """[S, B] int32, or [num_rows, B], as kernels read them: each sequence's blocks, then null
    blocks.
    """
    counts = np.diff(request.block_starts)
    width = int(counts.max(initial=least_width))
    tables = np.zeros((len(counts) if num_rows is None else num_rows, width), np.int32)
    shifts = np.repeat(np.arange(len(counts)) * width - request.block_starts[:-1], counts)
    tables.reshape(-1)[shifts + np.arange(len(shifts))] = request.block_ids
    return tables
