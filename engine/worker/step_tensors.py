"""A step's arrays on the device, as the layers read them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.ragged import gathered, places, starts_of
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import BLOCK_SIZE
from engine.worker.device.transfer import upload
from ops.interface import AttentionMetadata

_SMALL = 1 << 16  # entries of tables that are not worth another way


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What a forward pass reads, on the device."""

    input_ids: Tensor | None  # [T] int32, on the first stage
    residual: Tensor | None  # [T, D] dtype of the stage before, elsewhere; is written to
    positions: Tensor  # [T] int32
    metadata: AttentionMetadata


def table_arrays(
    request: ExecuteModelRequest, row_length: int, num_rows: int | None = None, *, least_width: int = 0
) -> dict[str, np.ndarray]:
    """A step's blocks, for `write_tables` and tables [*, row_length].

    Padded tables, if they are small. Where one context is far longer than others, they would be
    padding for the most part: then each block with its place in the flat tables. `num_rows`: if
    there are more than sequences, the others are in the null block; the last has `least_width` of
    it.
    """
    num_sequences = len(request.context_lens)
    counts = np.ones(num_sequences if num_rows is None else num_rows, np.int32)
    counts[-1:] = max(least_width, 1)
    counts[:num_sequences] = np.diff(request.block_starts)
    width = int(counts.max(initial=0))
    if len(counts) * width <= max(_SMALL, 2 * len(request.block_ids)):
        tables = np.zeros((len(counts), width), np.int32)
        owners = places(np.arange(num_sequences) * width, request.block_starts)
        tables.reshape(-1)[owners] = request.block_ids
        return {"tables": tables}
    starts = starts_of(counts)
    block_ids = np.zeros(starts[-1], np.int32)
    block_ids[: len(request.block_ids)] = request.block_ids
    return {"block_ids": block_ids, "block_places": places(np.arange(len(counts)) * row_length, starts)}


def bring_tables(arrays: Mapping[str, np.ndarray], tables: Tensor) -> None:
    """`write_tables`, of what is still on the host."""
    write_tables(upload(arrays, tables.device), tables)


def write_padded(request: ExecuteModelRequest, tables: np.ndarray, width: int) -> None:
    """A step's blocks into flat tables of rows of `width`; of a sequence that has more, the first
    so many.
    """
    starts, block_ids = request.block_starts, request.block_ids
    counts = np.diff(starts)
    if counts.max(initial=0) > width:
        kept = starts_of(np.minimum(counts, width))
        starts, block_ids = kept, gathered(block_ids, starts[:-1], kept)
    tables[places(np.arange(0, len(counts) * width, width), starts)] = block_ids


def num_blocks(num_tokens: int) -> int:
    """That they take."""
    return -(-num_tokens // BLOCK_SIZE)


def write_tables(arrays: Mapping[str, Tensor], tables: Tensor) -> None:
    """Once `table_arrays` is on the device: each row's blocks to its beginning in `tables` [*, *]
    int32, contiguous. What lies behind them stays, and is not read.
    """
    if "tables" in arrays:
        num_rows, width = arrays["tables"].shape
        tables[:num_rows, :width] = arrays["tables"]
    else:
        tables.view(-1).index_copy_(0, arrays["block_places"], arrays["block_ids"])
