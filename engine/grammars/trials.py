"""A pool of processes that compile grammars for the first time."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import LifoQueue

from engine.grammars.trial import TrialProcess
from engine.structured_outputs import StructuredOutputs

NUM_PROCESSES = 2  # of each kind


class TrialProcesses:
    """Some for first shares of time, and some for grammars that have used theirs, which keep none
    of the others from being tried. Thread-safe.
    """

    def __init__(self) -> None:
        self._all = [TrialProcess() for _ in range(2 * NUM_PROCESSES)]
        self._first = _free(self._all[:NUM_PROCESSES])
        self._long = _free(self._all[NUM_PROCESSES:])

    def source(
        self, asked: StructuredOutputs, *, was_accepted: bool = False, first_seconds: float | None = None
    ) -> str:
        """As `TrialProcess.source`, once one is free."""
        with self.one(is_first=first_seconds is not None) as process:
            return process.source(asked, was_accepted=was_accepted, first_seconds=first_seconds)

    @contextmanager
    def one(self, *, is_first: bool = False) -> Iterator[TrialProcess]:
        free = self._first if is_first else self._long
        process = free.get()
        try:
            yield process
        finally:
            free.put(process)

    def close(self) -> None:
        """End them; idempotent."""
        for process in self._all:
            process.close()


def _free(processes: list[TrialProcess]) -> "LifoQueue[TrialProcess]":
    """The last one first: others may never be needed."""
    free: LifoQueue[TrialProcess] = LifoQueue()
    for process in processes:
        free.put(process)
    return free
