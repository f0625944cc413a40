"""The steps that some rank has not completed yet, and the time that the oldest has taken."""

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from cluster.sockets.connection import ChannelError
from cluster.workers.steps.deadline import StepDeadline
from engine.errors import StepFailure
from engine.outputs import FetchedBlocks, SamplerOutput


class StepFuture(Future[SamplerOutput]):
    """The thread that waits for it reads the answers itself: a hand-over from another thread would
    cost 100 µs.
    """

    def __init__(self, read_until: Callable[[Future[SamplerOutput]], None]) -> None:
        super().__init__()
        self._read_until = read_until
        self.set_running_or_notify_cancel()  # a step cannot be cancelled

    def result(self, timeout: float | None = None) -> SamplerOutput:
        """`timeout` starts when no answer can come any more; before that the channel's own deadline
        applies.
        """
        if not self.done():
            self._read_until(self)
        return super().result(timeout)


@dataclass(slots=True)
class _Step:
    future: Future[SamplerOutput]
    num_tokens: int
    execute_ns: dict[int, int] = field(default_factory=dict)  # by rank, of those that have answered
    output: SamplerOutput | None = None
    fetched: list[FetchedBlocks] = field(default_factory=list)  # beside the output's own


class StepsInFlight:
    """One epoch's, until the first failure. From any thread."""

    def __init__(self, num_ranks: int, deadline: StepDeadline) -> None:
        self._num_ranks = num_ranks
        self._deadline = deadline
        self._lock = threading.Lock()  # of all below
        self._steps: dict[int, _Step] = {}  # by number
        self._oldest_since = 0.0  # when the oldest became the oldest
        self._failure: StepFailure | None = None

    def add(self, step: int, num_tokens: int, future: Future[SamplerOutput]) -> bool:
        """Whether the step may be sent; after a failure it fails at once."""
        with self._lock:
            if self._failure is not None:
                future.set_exception(self._failure)
                return False
            if not self._steps:
                self._oldest_since = time.monotonic()
            self._steps[step] = _Step(future, num_tokens)
            return True

    def tell_fetched(self, step: int, fetched: FetchedBlocks) -> None:
        """A rank tells it with its answer, just before."""
        with self._lock:
            if step in self._steps:
                self._steps[step].fetched.append(fetched)

    def answer(self, rank: int, step: int, execute_ns: int, output: SamplerOutput | None) -> None:
        """A rank has finished a step; the step ends with the last rank's answer. Raises
        ChannelError.
        """
        with self._lock:
            if self._failure is not None:
                return
            entry = self._steps.get(step)
            if entry is None:
                raise ChannelError(f"answered step {step}, which is not in flight")
            entry.execute_ns[rank] = execute_ns
            entry.output = output or entry.output
            if len(entry.execute_ns) < self._num_ranks:
                return
            if entry.output is None:
                raise ChannelError(f"no rank had an output of step {step}")
            del self._steps[step]
            now = time.monotonic()
            self._deadline.took(entry.num_tokens, now - self._oldest_since)
            self._oldest_since = now
        times = np.array([entry.execute_ns[rank] for rank in range(self._num_ranks)], np.int64)
        fetched = np.concatenate([entry.output.fetched, *entry.fetched])
        entry.future.set_result(dataclasses.replace(entry.output, execute_ns=times, fetched=fetched))

    def fail(self, failure: StepFailure) -> list[Future[SamplerOutput]] | None:
        """Accept no more steps; returns the futures of those in flight, which the caller must end.
        None if they have failed before.
        """
        with self._lock:
            if self._failure is not None:
                return None
            self._failure = failure
            steps, self._steps = self._steps, {}
        return [entry.future for entry in steps.values()]

    def oldest_unanswered(self, rank: int) -> int | None:
        """The step that a rank is computing."""
        with self._lock:
            return min((step for step, entry in self._steps.items() if rank not in entry.execute_ns), default=None)

    def find_overdue(self, slept: float) -> tuple[int, int, float] | None:
        """The first rank that has not answered the oldest step in time, that step, and the seconds
        it has taken; `slept`: seconds by which the reader woke late, which do not count.
        """
        with self._lock:
            self._oldest_since += max(slept, 0.0)
            if not self._steps:
                return None
            step = min(self._steps)
            entry = self._steps[step]
            seconds = time.monotonic() - self._oldest_since
            if seconds < self._deadline.limit(entry.num_tokens):
                return None
            return next(rank for rank in range(self._num_ranks) if rank not in entry.execute_ns), step, seconds
