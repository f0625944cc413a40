"""Mixed steps as graphs: a step in which sequences have several rows, of prompts or of drafts, is
padded to one of a few numbers of rows, and what it launches is replayed.

As with decode steps, what a graph reads lies in buffers that each step fills, and attention finds
its work on the device: which rows a sequence has is among what is read. A graph is for as many
sequences as there may be. The one behind the step's own has the padding rows, all of them its first
token, in the null block; those behind it have none.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import BLOCK_SIZE
from engine.worker.device.device import Capture
from engine.worker.device.transfer import upload
from engine.worker.graphs.decode_graphs import Forward
from engine.worker.graphs.graphs import Graphs, mixed_sizes
from engine.worker.step_tensors import StepTensors, table_arrays, write_tables
from ops.interface import AttentionMetadata

_NO_ROWS = np.empty((3, 0), np.int32)
_NO_START = np.zeros(1, np.int32)
_NO_LENGTHS = np.empty(0, np.int32)


class MixedGraphs:
    """Runs steps of few rows by graphs, whatever sequences the rows are of."""

    def __init__(
        self,
        forward: Forward,
        capture: Capture,
        *,
        max_num_rows: int,
        max_num_seqs: int,
        max_model_len: int,
        hidden_size: int,
        dtype: torch.dtype,
        is_first: bool,
        device: torch.device,
    ) -> None:
        """max_num_rows: of a step. hidden_size, dtype: of the residual stream, which a graph reads
        unless it is the first stage's.
        """
        self._forward = forward
        self._sizes = mixed_sizes(max_num_rows)
        self._num_seqs = max_num_seqs + 1
        self._longest = max_model_len
        self._device = device
        most_rows = self._sizes[-1]
        self._graphs = Graphs(capture, ((most_rows,),))
        whole = -(-most_rows // 4) * 4  # rows of 16 bytes, for which kernels are compiled
        width = -(-max(max_model_len, most_rows) // BLOCK_SIZE)
        self._columns = torch.zeros((3, whole), dtype=torch.int32, device=device)
        self._query_starts = torch.zeros(self._num_seqs + 1, dtype=torch.int32, device=device)
        self._context_lens = torch.zeros(self._num_seqs, dtype=torch.int32, device=device)
        self._tables = torch.zeros((self._num_seqs, width), dtype=torch.int32, device=device)
        self._hidden = torch.zeros((most_rows, hidden_size), dtype=dtype, device=device)
        self._residual = None if is_first else torch.zeros_like(self._hidden)

    @property
    def num_captured(self) -> int:
        return self._graphs.num_captured

    def takes(self, request: ExecuteModelRequest) -> bool:
        """Whether there is a graph for such a step, or can be: the same on every rank."""
        num_rows, num_seqs = len(request.input_ids), len(request.context_lens)
        if not 0 < num_rows <= self._sizes[-1] or num_seqs >= self._num_seqs:
            return False
        return int(request.context_lens.max()) <= self._longest

    def capture_all(self) -> None:
        """As `DecodeGraphs.capture_all`."""
        self._graphs.capture_all([(size,) for size in reversed(self._sizes)], self._compute_of, "mixed steps")

    def run(self, request: ExecuteModelRequest, fill_ids: Callable[[Tensor], None], received: Tensor | None) -> Tensor:
        """As `DecodeGraphs.run`."""
        num_rows = len(request.input_ids)
        size = next(size for size in self._sizes if size >= num_rows)
        replay = self._graphs.of((size,), self._compute_of)
        rows = np.stack((request.input_ids, request.positions, request.slot_mapping))
        blocks = table_arrays(
            request, self._tables.shape[1], len(request.context_lens) + 1, least_width=_num_blocks(size - num_rows)
        )
        self._fill(size, rows, request.query_starts, request.context_lens, blocks)
        fill_ids(self._columns[0, :size])
        if self._residual is not None:
            assert received is not None
            self._residual[num_rows:size].zero_()  # of padding rows, what earlier steps have added up
            self._residual[:num_rows] = received
        return replay()[:num_rows]

    def _compute_of(self, size: int) -> Callable[[], Tensor]:
        """For what is captured at once: the buffers have padding rows alone."""
        blocks = {"tables": np.zeros((1, _num_blocks(size)), np.int32)}
        self._fill(size, _NO_ROWS, _NO_START, _NO_LENGTHS, blocks)
        forward, tensors, hidden = self._forward, self._step_tensors(size), self._hidden[:size]
        return lambda: hidden.copy_(forward(tensors))  # all graphs have it: none keeps memory of its own

    def _fill(
        self,
        size: int,
        rows: np.ndarray,
        query_starts: np.ndarray,
        context_lens: np.ndarray,
        blocks: Mapping[str, np.ndarray],
    ) -> None:
        """rows [3, T]: ids, positions and slots; blocks: those of the padding, last."""
        num_rows, num_seqs = rows.shape[1], len(context_lens)
        columns = np.zeros((3, size), np.int32)
        columns[:, :num_rows] = rows
        starts = np.full(self._num_seqs + 1, size, np.int32)
        starts[: num_seqs + 1] = query_starts
        lengths = np.zeros(self._num_seqs, np.int32)
        lengths[:num_seqs] = context_lens
        lengths[num_seqs] = size - num_rows
        filled = upload({"columns": columns, "starts": starts, "lengths": lengths, **blocks}, self._device)
        self._columns[:, :size] = filled["columns"]
        self._query_starts.copy_(filled["starts"])
        self._context_lens.copy_(filled["lengths"])
        write_tables(filled, self._tables)

    def _step_tensors(self, size: int) -> StepTensors:
        input_ids, positions, slot_mapping = self._columns[:, :size]
        metadata = AttentionMetadata(
            query_starts=self._query_starts,
            context_lens=self._context_lens,
            block_tables=self._tables,
            slot_mapping=slot_mapping,
            max_query_len=size,
            max_context_len=self._longest,
        )
        if self._residual is not None:
            return StepTensors(None, self._residual[:size], positions, metadata)
        return StepTensors(input_ids, None, positions, metadata)


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)
