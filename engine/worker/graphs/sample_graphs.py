"""Logits, penalties, the draw and its logprobs as CUDA graphs, for steps whose rows ask for no
more: some twenty launches become one.

As with decode steps, rows are padded to one of a few numbers, and what a graph reads lies in
buffers that each step fills. Where no row has a penalty, none is filtered, or all are greedy, a
graph of its own leaves out what nobody asks for.

Rows' tokens so far are in one of these buffers, one row's after the other's. How long they are is
read on the device, so a graph is for histories of any lengths that have room in it.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.sampling_columns import SamplingColumns
from engine.worker.cache.token_history import Histories, history_room
from engine.worker.device.device import Capture
from engine.worker.graphs.graphs import KINDS, NUM_KINDS, PENALIZED, TOLD, Graphs, batch_sizes, history_size
from engine.worker.graphs.page import Page
from engine.worker.head.drawn_tokens import DrawnTokens, drawn_nowhere
from engine.worker.head.sampler import DRAW, PENALTIES, PackedSample, choose, draws_of, has_penalties, is_common
from ops.interface import Ops

# What a graph reads of each row, but for its seed of 64 bits; numbers of another type than int32.
_WORDS = [name for name in (*DRAW, *PENALTIES) if name != "seed"]
_FLOATS = {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"}


class SampleGraphs:
    """Samples rows by graphs."""

    def __init__(
        self,
        logits: Callable[[Tensor], Tensor],
        ops: Ops,
        capture: Capture,
        *,
        max_num_rows: int,
        max_model_len: int,
        hidden: Tensor,
        drawn: DrawnTokens,
    ) -> None:
        """logits: hidden [R, D] dtype of the last stage -> [R, V] float32, on all ranks of the
        stage. hidden [*, D]: what graphs read. drawn: where they leave their tokens, in its ring.
        """
        self._logits = logits
        self._ops = ops
        self._sizes = batch_sizes(max_num_rows)
        self._graphs = Graphs(capture, ((self._sizes[-1], PENALIZED),))  # keys: of rows, kind
        whole = -(-max_num_rows // 4) * 4  # rows of 16 bytes, for which kernels are compiled
        assert drawn.ring is not None, "there is no ring of drawn tokens"
        self._drawn, self._ring, device = drawn, drawn.ring, hidden.device
        int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
        parts: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "row": ((1,), int64),
            "seeds": ((max_num_rows,), int64),
            "words": ((len(_WORDS), whole), int32),
        }
        self._page = Page(parts, device)
        self._row, self._seeds, self._words = self._page.tensors.values()
        self._hidden = hidden
        self._history = torch.zeros(history_size(max_num_rows, max_model_len), dtype=torch.int32, device=device)
        self._history_places = torch.zeros((2, whole), dtype=torch.int32, device=device)  # starts, lengths

    @property
    def num_captured(self) -> int:
        return self._graphs.num_captured

    def takes(self, columns: SamplingColumns) -> bool:
        """Whether there is a graph for such rows, or can be: the same on every rank."""
        if not (0 < len(columns.seed) <= self._sizes[-1] and is_common(columns)):
            return False
        return not has_penalties(columns) or history_room(columns) <= len(self._history)

    def capture_all(self) -> None:
        """As `DecodeGraphs.capture_all`."""
        self._history_places.zero_()
        self._row.fill_(drawn_nowhere(self._ring))
        keys = [(size, kind) for size in reversed(self._sizes) for kind in range(NUM_KINDS)]
        self._graphs.capture_all(keys, self._compute_of, "sampling")

    def run(self, hidden: Tensor, columns: SamplingColumns, histories: Histories | None = None) -> PackedSample:
        """hidden [R, D] dtype of the sampled rows; `histories`: theirs, if any row has a penalty.
        The next step overwrites what comes back: for later work of this stream.
        """
        num_rows = len(hidden)
        size = next(size for size in self._sizes if size >= num_rows)
        if not _begins(hidden, self._hidden):
            self._hidden[:num_rows] = hidden
        kind = _kind_of(columns) if histories is None else PENALIZED
        if (size, kind) not in self._graphs:
            self._row.fill_(drawn_nowhere(self._ring))  # what is kept of earlier steps is still wanted
        replay = self._graphs.of((size, kind), self._compute_of)
        self._fill(columns, size, histories)
        words = replay()
        if words.device.type == "cpu":
            words = words.clone()  # a device's are copied to the host before the next step's come
        return PackedSample(words, self._ring[self._drawn.next_row, :num_rows])

    def _compute_of(self, size: int, kind: int) -> Callable[[], Tensor]:
        words = {name: self._words[row, :size] for row, name in enumerate(_WORDS)}
        wanted = {name: column.view(torch.float32) if name in _FLOATS else column for name, column in words.items()}
        wanted["seed"] = self._seeds[:size]
        logits, hidden, ops = self._logits, self._hidden[:size], self._ops
        ring, row = self._ring[:, :size], self._row
        histories = Histories(self._history, *self._history_places[:, :size])

        def kept(drawn: Tensor) -> Tensor:
            ring.index_copy_(0, row, drawn[:1])
            return drawn

        def compute() -> Tensor:
            return kept(choose(logits(hidden), wanted, ops, KINDS[kind]))

        def compute_penalized() -> Tensor:
            own = logits(hidden)
            ops.apply_penalties(own, *histories, *(wanted[name] for name in PENALTIES))
            return kept(choose(own, wanted, ops, "any"))

        def compute_told() -> Tensor:
            own = logits(hidden)
            drawn = kept(choose(own, wanted, ops, "any"))
            logprobs, ranks, _, _ = ops.token_logprobs(own, drawn[0], 0)
            return torch.cat((drawn, torch.stack((logprobs.view(torch.int32), ranks))))

        return {PENALIZED: compute_penalized, TOLD: compute_told}.get(kind, compute)

    def _fill(self, columns: SamplingColumns, size: int, histories: Histories | None) -> None:
        """Padding rows have temperature 0 and no history: their likeliest token, whatever they
        hold.
        """
        row, seeds, words = self._page.begin()
        row[0] = self._drawn.next_row
        num_rows = len(columns.seed)
        seeds[:num_rows] = columns.seed.view(np.int64)
        words[:, num_rows:size] = 0
        for word, name in zip(words, _WORDS, strict=True):
            column = columns.whole(name) if histories is not None else getattr(columns, name)
            word[:num_rows] = column.view(np.int32) if len(column) else 0
        self._page.send()
        if histories is not None:
            self._history[: len(histories.ids)] = histories.ids
            self._history_places[0, :num_rows] = histories.starts
            self._history_places[1, :num_rows] = histories.lengths
            self._history_places[1, num_rows:size] = 0


def _begins(rows: Tensor, buffer: Tensor) -> bool:
    """Whether rows are the first of buffer's."""
    return (
        rows.untyped_storage()._cdata == buffer.untyped_storage()._cdata
        and rows.storage_offset() == buffer.storage_offset()
    )


def _kind_of(columns: SamplingColumns) -> int:
    """Of rows without penalties."""
    return TOLD if columns.logprob_counts.any() else KINDS.index(draws_of(columns))
