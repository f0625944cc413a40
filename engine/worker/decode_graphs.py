"""Decode steps as graphs: a step of one token a sequence is padded to one of a few sizes, and what
it launches is replayed.

A graph is a CUDA graph or, on the CPU, a tape of kernel calls (`ops.cpu.tape`). What it reads lies
where it lay when the graph was captured, in buffers that each step fills anew. Nothing in it
depends on a batch's content: attention reads contexts from the device, and is told the longest that
there may be. A padding row is the first token of a sequence in the null block, which nobody reads:
the kernels meet nothing that a real row could not be.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.step import ExecuteModelRequest
from engine.worker.kv_cache import BLOCK_SIZE
from engine.worker.transfer import upload
from ops.interface import AttentionMetadata

logger = logging.getLogger("squadron.worker")

SHORTEST_CONTEXT = 512
BYTES_PER_GRAPH = 2 << 20  # what the driver keeps of each, beside its memory pool: an estimate, not measured
# Sizes that are worth a tape: with more rows Python's time is nothing beside the kernels', and
# padding would cost some.
TAPE_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What a forward pass reads, on the device."""

    input_ids: Tensor | None  # [T] int32, on the first stage
    residual: Tensor | None  # [T, D] dtype of the stage before, elsewhere; is written to
    positions: Tensor  # [T] int32
    metadata: AttentionMetadata


Forward = Callable[[StepTensors], Tensor]
Replay = Callable[[], Tensor]  # computes anew from what the buffers hold, into the same tensor each time
Capture = Callable[[Callable[[], Tensor]], Replay]


def batch_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, and the multiples of 8 below max_num_seqs, and that."""
    return [size for size in (1, 2, 4, *range(8, max_num_seqs, 8)) if size < max_num_seqs] + [max_num_seqs]


def context_limits(max_model_len: int) -> list[int]:
    """Powers of 8 from 512 on below max_model_len, and that: how much room attention makes follows
    the longest context.
    """
    limits = []
    limit = SHORTEST_CONTEXT
    while limit < max_model_len:
        limits.append(limit)
        limit *= 8
    return [*limits, max_model_len]


def is_decode(request: ExecuteModelRequest) -> bool:
    """Whether each of its sequences has one row."""
    return 0 < len(request.input_ids) == len(request.context_lens)


class CudaCapture:
    """Captures what a function launches on this device. All graphs share a memory pool: one runs at
    a time.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        """compute() has run before: its kernels are compiled and its communicators made. Raises
        RuntimeError.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads may wait for events meanwhile: that of the outputs, NCCL's.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = compute()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class Graphs:
    """What was captured, by how many rows it is for (and more); each when it is first asked for.

    Where they share a memory pool, the largest is captured before the first: the others find room
    in what it leaves of the pool, which would else keep memory for each that came after a smaller
    one.
    """

    def __init__(self, capture: Capture, before: tuple[tuple[int, ...], ...]) -> None:
        """before: keys that are captured before any other."""
        self._capture = capture
        self._before = before
        self._replays: dict[tuple[int, ...], Replay] = {}
        self.num_captured = 0

    def __contains__(self, key: tuple[int, ...]) -> bool:
        return key in self._replays

    def of(self, key: tuple[int, ...], compute_of: Callable[..., Callable[[], Tensor]]) -> Replay:
        """compute_of(*key): what the graph for it computes; the first part of a key is the number
        of rows.

        It is not kept: whoever has graphs goes, with the weights and the cache that they hold, when
        nobody wants them.
        """
        for each in (*self._before, key):
            if each not in self._replays:
                self._replays[each] = self._make(each, compute_of(*each))
        return self._replays[key]

    def _make(self, key: tuple[int, ...], compute: Callable[[], Tensor]) -> Replay:
        # For what a capture needs to be there. Ranks exchange in it: out of memory here is the
        # step's end, on all of them.
        compute()
        try:
            replay = self._capture(compute)
        except RuntimeError as error:  # no collective is waited for in a capture: ranks may differ in this
            reason = str(error).splitlines()[0]
            logger.warning("there is no graph of %d rows, such steps are launched as others are: %s", key[0], reason)
            return compute
        self.num_captured += 1
        return replay


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
        device: torch.device,
        embed: Callable[[Tensor], Tensor] | None = None,
        shares_memory: bool = True,
    ) -> None:
        """sizes, context_limits: what steps are padded to; both ascend.

        received: hidden size and dtype of the residual that a graph reads, which comes from the
        stage before or, on the first stage, from `embed`: what input_ids [T] int32 are before any
        graph. None: a graph reads input_ids. shares_memory: all graphs do.
        """
        self._forward = forward
        self._sizes = sizes
        self._limits = context_limits
        self._device = device
        self._embed = embed
        largest = sizes[-1], context_limits[-1]
        self._graphs = Graphs(capture, (largest,) if shares_memory else ())
        most_rows, longest = largest
        whole = -(-most_rows // 4) * 4  # rows of 16 bytes, for which kernels are compiled
        self._columns = torch.zeros((4, whole), dtype=torch.int32, device=device)
        self._tables = torch.zeros((most_rows, -(-longest // BLOCK_SIZE)), dtype=torch.int32, device=device)
        self._query_starts = torch.arange(most_rows + 1, dtype=torch.int32, device=device)
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

    def run(self, request: ExecuteModelRequest, fill_ids: Callable[[Tensor], None], received: Tensor | None) -> Tensor:
        """The residual stream [T, D] after this stage, which is the next step's to overwrite: for
        later work of this stream.

        fill_ids writes the tokens that the driver does not know yet over input_ids. received: from
        the stage before.
        """
        num_rows, longest = len(request.input_ids), int(request.context_lens.max())
        size = next(size for size in self._sizes if size >= num_rows)
        limit = next(limit for limit in self._limits if limit >= longest)
        if (size, limit) not in self._graphs:
            self._clear()  # rows of an earlier step would write into blocks that are others' by now
        replay = self._graphs.of((size, limit), self._compute_of)
        self._fill(request, size)
        fill_ids(self._columns[0, :size])
        if self._embed is not None:
            received = self._embed(self._columns[0, :num_rows])
        if self._residual is not None:
            assert received is not None
            self._residual.zero_()  # of padding rows, what earlier steps have added up
            self._residual[:num_rows] = received
        return replay()[:num_rows]

    def _compute_of(self, size: int, limit: int) -> Callable[[], Tensor]:
        return partial(self._forward, self._step_tensors(size, limit))

    def _clear(self) -> None:
        self._columns.zero_()
        self._columns[3] = 1
        self._tables.zero_()

    def _fill(self, request: ExecuteModelRequest, size: int) -> None:
        num_rows, width = request.block_tables.shape
        columns = np.zeros((4, size), np.int32)
        columns[:, :num_rows] = request.input_ids, request.positions, request.slot_mapping, request.context_lens
        columns[3, num_rows:] = 1
        tables = np.zeros((size, width), np.int32)
        tables[:num_rows] = request.block_tables
        filled = upload({"columns": columns, "tables": tables}, self._device)
        self._columns[:, :size] = filled["columns"]
        self._tables[:size, :width] = filled["tables"]

    def _step_tensors(self, size: int, longest: int) -> StepTensors:
        input_ids, positions, slot_mapping, context_lens = self._columns[:, :size]
        metadata = AttentionMetadata(
            query_starts=self._query_starts[: size + 1],
            context_lens=context_lens,
            block_tables=self._tables[:size],
            slot_mapping=slot_mapping,
            max_query_len=1,
            max_context_len=longest,
        )
        if self._residual is not None:
            return StepTensors(None, self._residual[:size], positions, metadata)
        return StepTensors(input_ids, None, positions, metadata)
