"""A pool of processes that compile grammars for the first time."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import LifoQueue

from engine.grammars.trial import TrialProcess
from engine.structured_outputs import StructuredOutputs

NUM_PROCESSES = 2


class TrialProcesses:
    """Some, so that a grammar that takes long does not keep the next from being tried.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._all = [TrialProcess() for _ in range(NUM_PROCESSES)]
        self._free: LifoQueue[TrialProcess] = LifoQueue()  # the last one first: others may never be needed
        for process in self._all:
            self._free.put(process)

    def source(self, asked: StructuredOutputs, *, was_accepted: bool = False) -> str:
        """As `TrialProcess.source`, once one is free."""
        with self.one() as process:
            return process.source(asked, was_accepted=was_accepted)

    @contextmanager
    def one(self) -> Iterator["TrialProcess"]:
        process = self._free.get()
        try:
            yield process
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End them; idempotent."""
        for process in self._all:
            process.close()
