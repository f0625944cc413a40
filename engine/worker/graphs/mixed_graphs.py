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
from engine.worker.device.device import Capture
from engine.worker.graphs.decode_graphs import Forward, Place
from engine.worker.graphs.graphs import Graphs, mixed_sizes
from engine.worker.graphs.page import Page
from engine.worker.inputs import Inputs
from engine.worker.step_tensors import StepTensors, bring_tables, num_blocks, table_arrays
from ops.interface import AttentionMetadata

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
        hidden: Tensor,
        is_first: bool,
        place: Place,
    ) -> None:
        """max_num_rows: of a step. hidden [*, D]: for what comes out of all graphs, in the type of
        the residual stream, which a graph reads unless it is the first stage's. place:
        `Inputs.place`, within the graph.
        """
        self._forward = forward
        self._sizes = mixed_sizes(max_num_rows)
        self._num_seqs = max_num_seqs + 1
        self._longest = max_model_len
        self._place = place
        device = hidden.device
        most_rows = self._sizes[-1]
        self._graphs = Graphs(capture, ((most_rows,),))
        whole = -(-most_rows // 4) * 4  # rows of 16 bytes, for which kernels are compiled
        width = num_blocks(max(max_model_len, most_rows))
        int32 = np.dtype(np.int32)
        parts = {
            "columns": ((4, whole), int32),
            "starts": ((self._num_seqs + 1,), int32),
            "lengths": ((self._num_seqs,), int32),
        }
        self._page = Page(parts, device)
        self._columns, self._query_starts, self._context_lens = self._page.tensors.values()
        self._tables = torch.zeros((self._num_seqs, width), dtype=torch.int32, device=device)
        self._hidden = hidden
        self._residual = None if is_first else torch.zeros_like(hidden[:most_rows])

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

    def run(self, request: ExecuteModelRequest, inputs: Inputs, received: Tensor | None) -> Tensor:
        """As `DecodeGraphs.run`."""
        num_rows = len(request.input_ids)
        size = next(size for size in self._sizes if size >= num_rows)
        replay = self._graphs.of((size,), self._compute_of)
        sources = np.empty(num_rows, np.int32)
        are_placed = inputs.drawn.sources(request, sources)
        rows = (request.input_ids, request.positions, request.slot_mapping, sources)
        blocks = table_arrays(
            request, self._tables.shape[1], len(request.context_lens) + 1, least_width=num_blocks(size - num_rows)
        )
        self._fill(size, rows, request.query_starts, request.context_lens, blocks)
        if not are_placed:
            inputs.drawn.fill(request, self._columns[0, :size])
        if self._residual is not None:
            assert received is not None
            self._residual[num_rows:size].zero_()  # of padding rows, what earlier steps have added up
            self._residual[:num_rows] = received
        replay()
        return self._hidden[:num_rows]

    def _compute_of(self, size: int) -> Callable[[], Tensor]:
        """For what is captured at once: the buffers have padding rows alone."""
        blocks = {"tables": np.zeros((1, num_blocks(size)), np.int32)}
        self._fill(size, 4 * (_NO_LENGTHS,), _NO_START, _NO_LENGTHS, blocks)
        forward, tensors, hidden = self._forward, self._step_tensors(size), self._hidden[:size]
        place = self._place
        input_ids, _, slot_mapping, sources = self._columns[:, :size]

        def compute() -> Tensor:
            place(input_ids, sources, slot_mapping)
            return hidden.copy_(forward(tensors))  # all graphs have it: none keeps memory of its own

        return compute

    def _fill(
        self,
        size: int,
        rows: tuple[np.ndarray, ...],
        query_starts: np.ndarray,
        context_lens: np.ndarray,
        blocks: Mapping[str, np.ndarray],
    ) -> None:
        """rows, [T] each: ids, positions, slots and sources; blocks: those of the padding, last."""
        num_rows, num_seqs = len(rows[0]), len(context_lens)
        columns, starts, lengths = self._page.begin()
        for column, values in zip(columns, rows, strict=True):
            column[:num_rows] = values
        columns[:3, num_rows:] = 0
        columns[3, num_rows:] = -1
        starts[: num_seqs + 1] = query_starts
        starts[num_seqs + 1 :] = size
        lengths[:num_seqs] = context_lens
        lengths[num_seqs] = size - num_rows
        lengths[num_seqs + 1 :] = 0
        self._page.send()
        bring_tables(blocks, self._tables)

    def _step_tensors(self, size: int) -> StepTensors:
        input_ids, positions, slot_mapping, _ = self._columns[:, :size]
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
