"""Logits and the draw as CUDA graphs, for steps whose rows ask for no more: some twenty launches
become one.

As with decode steps, rows are padded to one of a few numbers, and what a graph reads lies in
buffers that each step fills. Where no row is filtered, or all are greedy, a graph of its own leaves
out what nobody asks for.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.sampling_columns import SamplingColumns
from engine.worker.device.device import Capture
from engine.worker.device.transfer import upload
from engine.worker.graphs.graphs import KINDS, Graphs, batch_sizes
from engine.worker.head.sampler import DRAW, Sampled, choose, draws_of, is_plain, split, without_logprobs
from ops.interface import Ops

_WORDS = {name: torch.float32 if name in ("temperature", "top_p", "min_p") else torch.int32 for name in DRAW}
del _WORDS["seed"]  # of 64 bits, the others of 32


class SampleGraphs:
    """Samples rows by graphs."""

    def __init__(
        self,
        logits: Callable[[Tensor], Tensor],
        ops: Ops,
        capture: Capture,
        *,
        max_num_rows: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """logits: hidden [R, D] dtype of the last stage -> [R, V] float32, on all ranks of the
        stage.
        """
        self._logits = logits
        self._ops = ops
        self._sizes = batch_sizes(max_num_rows)
        self._graphs = Graphs(capture, ((self._sizes[-1], 0),))  # keys: of rows, of KINDS
        whole = -(-max_num_rows // 4) * 4  # rows of 16 bytes, for which kernels are compiled
        self._words = torch.zeros((len(_WORDS), whole), dtype=torch.int32, device=device)
        self._seeds = torch.zeros(max_num_rows, dtype=torch.int64, device=device)
        self._hidden = torch.zeros((max_num_rows, hidden_size), dtype=dtype, device=device)

    @property
    def num_captured(self) -> int:
        return self._graphs.num_captured

    def takes(self, columns: SamplingColumns) -> bool:
        """Whether there is a graph for such rows, or can be: the same on every rank."""
        return 0 < len(columns.seed) <= self._sizes[-1] and is_plain(columns)

    def capture_all(self) -> None:
        """As `DecodeGraphs.capture_all`."""
        keys = [(size, kind) for size in reversed(self._sizes) for kind in range(len(KINDS))]
        self._graphs.capture_all(keys, self._compute_of, "sampling")

    def run(self, hidden: Tensor, columns: SamplingColumns) -> Sampled:
        """hidden [R, D] dtype of the sampled rows; what comes back is the caller's to keep."""
        num_rows = len(hidden)
        size = next(size for size in self._sizes if size >= num_rows)
        self._hidden[:num_rows] = hidden  # before another graph is captured or replayed, in whose memory it lies
        replay = self._graphs.of((size, KINDS.index(draws_of(columns))), self._compute_of)
        self._fill(columns, size)
        return without_logprobs(*split(replay().clone()[:, :num_rows]))

    def _compute_of(self, size: int, kind: int) -> Callable[[], Tensor]:
        wanted = {name: self._words[row, :size].view(dtype) for row, (name, dtype) in enumerate(_WORDS.items())}
        wanted["seed"] = self._seeds[:size]

        logits, hidden, ops = self._logits, self._hidden[:size], self._ops

        def compute() -> Tensor:
            return choose(logits(hidden), wanted, ops, KINDS[kind])

        return compute

    def _fill(self, columns: SamplingColumns, size: int) -> None:
        """Padding rows have temperature 0: their likeliest token, whatever they hold."""
        words = np.zeros((len(_WORDS), size), np.int32)
        for row, name in zip(words, _WORDS, strict=True):
            column = getattr(columns, name)
            row[: len(column)] = column.view(np.int32)
        seeds = np.zeros(size, np.int64)
        seeds[: len(columns.seed)] = columns.seed.view(np.int64)
        filled = upload({"words": words, "seeds": seeds}, self._words.device)
        self._words[:, :size] = filled["words"]
        self._seeds[:size] = filled["seeds"]
