"""Decode steps as graphs: a step of one token a sequence is padded to one of a few sizes, and what
it launches is replayed.

A graph is a CUDA graph or, on the CPU, a tape of kernel calls (`ops.cpu.tape`). What it reads lies
where it lay when the graph was captured, in buffers that each step overwrites. Nothing in it
depends on a batch's content: attention reads contexts from the device, and is told the longest that
there may be. A padding row is the first token of a sequence in the null block, which is never read:
the kernels meet nothing that a real row could not be.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.step import ExecuteModelRequest
from engine.worker.device.device import Capture
from engine.worker.graphs.graphs import Graphs
from engine.worker.graphs.page import Page
from engine.worker.inputs import Inputs
from engine.worker.step_tensors import StepTensors, bring_tables, num_blocks, table_arrays, write_padded
from ops.interface import AttentionMetadata

# Numbers of rows that are worth a tape: with more, Python's time is nothing beside the kernels',
# even those of a small model. A tape costs little: each number has its own, and nothing is padded.
TAPE_SIZES = range(1, 65)
MOST_IN_PAGE = 1 << 17  # entries of tables that come with a step's other arrays, padded to the graph's width


Forward = Callable[[StepTensors], Tensor]
Place = Callable[[Tensor, Tensor, Tensor], None]


def is_decode(request: ExecuteModelRequest) -> bool:
    """Whether each of its sequences has one row."""
    return 0 < len(request.input_ids) == len(request.context_lens)


class DecodeGraphs:
    """Runs decode steps by graphs."""

    def __init__(
        self,
        forward: Forward,
        capture: Capture,
        *,
        sizes: Sequence[int],
        context_limits: Sequence[int],
        received: tuple[int, torch.dtype] | None,
        num_kv_heads: int,
        device: torch.device,
        embed: Callable[[Tensor], Tensor] | None = None,
        place: Place | None = None,
        hidden: Tensor | None = None,
        is_warmed_up: bool = True,
    ) -> None:
        """sizes, context_limits: what steps are padded to; both ascend.

        received: hidden size and dtype of the residual that a graph reads, which comes from the
        stage before or, on the first stage, from `embed`: what input_ids [T] int32 are before any
        graph. None: a graph reads input_ids. is_warmed_up: see `Graphs`; then the largest is
        captured before any other, whose memory they share. num_kv_heads: of this rank. place:
        `Inputs.place`, within the graph, and hidden [*, D]: for what comes out of all graphs; None:
        tokens are filled in before, and each graph has its own.
        """
        self._forward = forward
        self._sizes = sizes
        self._limits = context_limits
        self._embed = embed
        self._place = place
        self._hidden = hidden
        largest = sizes[-1], context_limits[-1]
        self._graphs = Graphs(capture, (largest,) if is_warmed_up else (), is_warmed_up=is_warmed_up)
        most_rows, longest = largest
        whole = -(-most_rows // 4) * 4  # rows of 16 bytes, for which kernels are compiled
        width = num_blocks(longest)
        int32 = np.dtype(np.int32)
        parts = {"columns": ((5, whole), int32), "tables": ((min(most_rows * width, MOST_IN_PAGE),), int32)}
        self._page = Page(parts, device)
        self._columns, self._page_tables = self._page.tensors.values()
        # Of steps whose tables have no room in the page.
        self._tables = torch.zeros((most_rows, width), dtype=torch.int32, device=device)
        self._query_starts = torch.arange(most_rows + 1, dtype=torch.int32, device=device)
        self._arrivals = torch.zeros((most_rows, num_kv_heads), dtype=torch.int32, device=device)
        self._residual = None
        if received is not None:
            hidden_size, dtype = received
            self._residual = torch.zeros((most_rows, hidden_size), dtype=dtype, device=device)

    @property
    def num_captured(self) -> int:
        return self._graphs.num_captured

    def takes(self, request: ExecuteModelRequest) -> bool:
        """Whether there is a graph for such a step, or can be."""
        return is_decode(request) and len(request.input_ids) <= self._sizes[-1]

    def capture_all(self) -> None:
        """Now, so that no step is held up by it; every rank must call it. No step may be under way,
        and nothing of the cache may be needed but its blocks other than the null block.
        """
        self._clear()
        keys = [(size, limit) for limit in reversed(self._limits) for size in reversed(self._sizes)]
        self._graphs.capture_all(keys, self._compute_of, "decode steps")

    def run(self, request: ExecuteModelRequest, inputs: Inputs, received: Tensor | None) -> Tensor:
        """What comes out of this stage [T, D], which is the next step's to overwrite: for later
        work of this stream.

        inputs: have the tokens that the driver does not know yet. received: from the stage before.
        """
        num_rows, longest = len(request.input_ids), int(request.context_lens.max())
        size = next(size for size in self._sizes if size >= num_rows)
        limit = next(limit for limit in self._limits if limit >= longest)
        if (size, limit) not in self._graphs:
            self._clear()  # rows of an earlier step would write into blocks that are others' by now
        replay = self._graphs.of((size, limit), self._compute_of)
        if not self._fill(request, size, num_blocks(limit), inputs):
            inputs.drawn.fill(request, self._columns[0, :size])
        if self._embed is not None:
            received = self._embed(self._columns[0, :num_rows])
        if self._residual is not None:
            assert received is not None
            self._residual.zero_()  # of padding rows, what earlier steps have added up
            self._residual[:num_rows] = received
        result = replay()
        return (result if self._hidden is None else self._hidden)[:num_rows]

    def _compute_of(self, size: int, limit: int) -> Callable[[], Tensor]:
        forward, tensors = self._forward, self._step_tensors(size, limit)
        if self._place is None or self._hidden is None:
            return lambda: forward(tensors)
        place, hidden = self._place, self._hidden[:size]
        input_ids, _, slot_mapping, _, sources = self._columns[:, :size]

        def compute() -> Tensor:
            place(input_ids, sources, slot_mapping)
            return hidden.copy_(forward(tensors))

        return compute

    def _clear(self) -> None:
        self._columns.zero_()
        self._columns[3] = 1
        self._columns[4] = -1
        self._page_tables.zero_()
        self._tables.zero_()

    def _are_in_page(self, size: int, width: int) -> bool:
        """Whether tables of so many rows and blocks have room there."""
        return size * width <= len(self._page_tables)

    def _fill(self, request: ExecuteModelRequest, size: int, width: int, inputs: Inputs) -> bool:
        """Whether tokens that the driver does not know yet will be placed. width: blocks in a row
        of the graph's tables.
        """
        num_rows = len(request.input_ids)
        are_in_page = self._are_in_page(size, width)
        columns, tables = self._page.begin(size * width if are_in_page else 0)
        columns[:3, num_rows:size] = 0
        columns[0, :num_rows] = request.input_ids
        columns[1, :num_rows] = request.positions
        columns[2, :num_rows] = request.slot_mapping
        columns[3, :num_rows] = request.context_lens
        columns[3, num_rows:] = 1
        columns[4, num_rows:] = -1
        are_placed = inputs.drawn.sources(request, columns[4, :num_rows])
        if are_in_page:
            write_padded(request, tables, width)
            tables[num_rows * width :: width] = 0
        self._page.send()
        if not are_in_page:
            blocks = table_arrays(request, self._tables.shape[1], size)
            bring_tables(blocks, self._tables)
        return are_placed

    def _step_tensors(self, size: int, longest: int) -> StepTensors:
        input_ids, positions, slot_mapping, context_lens, _ = self._columns[:, :size]
        width = num_blocks(longest)
        are_in_page = self._are_in_page(size, width)
        metadata = AttentionMetadata(
            query_starts=self._query_starts[: size + 1],
            context_lens=context_lens,
            block_tables=self._page_tables[: size * width].view(size, width) if are_in_page else self._tables[:size],
            slot_mapping=slot_mapping,
            max_query_len=1,
            max_context_len=longest,
            arrivals=self._arrivals[:size],
        )
        if self._residual is not None:
            return StepTensors(None, self._residual[:size], positions, metadata)
        return StepTensors(input_ids, None, positions, metadata)
