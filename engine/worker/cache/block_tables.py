"""The driver's block tables, as a rank knows them."""

from dataclasses import replace

import numpy as np

from engine.ragged import gathered, starts_of
from engine.step import ExecuteModelRequest
from engine.worker.cache.kv_cache import BLOCK_SIZE


class BlockTables:
    """Grow with what is in them. Every step of an epoch must come by, in order. A new epoch finds
    them as the last one left them, and writes what it reads.
    """

    def __init__(self) -> None:
        self._tables = np.zeros((0, 0), np.int32)

    def read(self, request: ExecuteModelRequest) -> ExecuteModelRequest:
        """The step with its blocks; one that brings them itself stays as it is."""
        if len(request.block_starts):
            return request
        self._write(request.table_changes)
        lengths = request.context_lens
        if len(request.drafting):  # what is guessed is written behind the step's own tokens
            lengths = lengths.copy()
            lengths[request.drafting[:, 0]] += request.drafting[:, 5]
        starts = starts_of(-(-lengths // BLOCK_SIZE))
        firsts = request.table_rows.astype(np.int64) * self._tables.shape[1]
        return replace(request, block_starts=starts, block_ids=gathered(self._tables.reshape(-1), firsts, starts))

    def _write(self, changes: np.ndarray) -> None:
        if not len(changes):
            return
        rows, columns, blocks = changes.T
        self._make_room(int(rows.max()) + 1, int(columns.max()) + 1)
        self._tables[rows, columns] = blocks

    def _make_room(self, num_rows: int, width: int) -> None:
        """Twice as many rows as there were, or columns, if there are too few."""
        had_rows, had_width = self._tables.shape
        if num_rows <= had_rows and width <= had_width:
            return
        before = self._tables
        num_rows = had_rows if num_rows <= had_rows else max(num_rows, 2 * had_rows)
        width = had_width if width <= had_width else max(width, 2 * had_width)
        self._tables = np.zeros((num_rows, width), np.int32)
        self._tables[:had_rows, :had_width] = before
