"""The block tables of running sequences, a row for each, and what workers have not been told."""

import numpy as np

from engine.scheduling.sequence import Sequence


class TableRows:
    """`tables` is padded with the null block. What is written there is in the sequence's
    `block_table` too.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self.tables = np.zeros((num_rows, width), np.int32)
        self._free = list(range(num_rows - 1, -1, -1))
        self._changes: list[int] = []  # row, column and block of each

    def enter(self, seq: Sequence) -> None:
        """Give the sequence a row."""
        seq.row = self._free.pop()

    def append(self, seq: Sequence, block: int) -> None:
        self._set(seq, len(seq.block_table), block)
        seq.block_table.append(block)

    def replace(self, seq: Sequence, index: int, block: int) -> None:
        self._set(seq, index, block)
        seq.block_table[index] = block

    def cut(self, seq: Sequence, num_kept: int) -> None:
        """Leave the sequence its first blocks."""
        self.tables[seq.row, num_kept : len(seq.block_table)] = 0
        del seq.block_table[num_kept:]

    def leave(self, seq: Sequence) -> None:
        """The sequence, which may have no row, has none and no blocks afterwards."""
        if seq.row is not None:
            self.tables[seq.row, : len(seq.block_table)] = 0
            self._free.append(seq.row)
            seq.row = None
        seq.block_table.clear()

    def take_changes(self) -> np.ndarray:
        """Since the last call; see `ExecuteModelRequest.table_changes`. Freed rows and ends of rows
        are none: nobody reads them before they are written.
        """
        changes = np.array(self._changes, np.int32).reshape(-1, 3)
        self._changes.clear()
        return changes

    def _set(self, seq: Sequence, column: int, block: int) -> None:
        assert seq.row is not None, "only running sequences have blocks"
        self.tables[seq.row, column] = block
        self._changes += (seq.row, column, block)
