"""Recovery from a failed step: the next epoch of workers begins, and the request that caused it
ends.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.errors import (
    REQUEST_QUARANTINED,
    STEP_FAILED,
    EngineDead,
    InvalidConfig,
    StepFailure,
    WorkerLost,
)
from engine.executor import Capacity, Executor, Weights
from engine.records.recorder import Recorder
from engine.records.timeline import Recovered
from engine.recovery.suspects import Suspects
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.sequence import SequenceGroup
from engine.scheduling.waiting.waiting_queue import WaitingQueue

logger = logging.getLogger("squadron.engine")

BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0)  # before the first consecutive restart, the second, ... and all later ones
PROGRESS_STEPS = 8  # steps after which a restart counts as a success
MAX_CONVICTIONS = 3  # consecutive: if the next step fails too, requests are not the cause


@dataclass(frozen=True, slots=True)
class Verdict:
    """A request that ends because it made steps fail."""

    group: SequenceGroup
    message: str
    code: str


class Recovery:
    """Replaces workers and judges requests. The engine, which owns the sequences, makes them wait
    again.
    """

    def __init__(self, executor: Executor, waiting: WaitingQueue, recorder: Recorder, max_restarts: int) -> None:
        self.epoch = 0
        self.cause: str | None = None  # of the current restart; read by any thread
        self.suspects = Suspects(waiting)
        self.budget = RestartBudget(max_restarts)
        self._max_restarts = max_restarts
        self._executor = executor
        self._recorder = recorder
        self._failed_at: float | None = None  # until a step succeeds again

    def recover(
        self, failure: StepFailure, lost: list[SchedulerOutputs], num_requests: int
    ) -> tuple[Capacity, Verdict | None]:
        """Begin the next epoch; `lost` are the steps that were in flight, the failed one among
        them.

        Raises EngineDead if workers cannot be replaced.
        """
        self._failed_at = failed_at = time.monotonic()
        is_kill = isinstance(failure, WorkerLost) and self._executor.was_killed(failure)
        how = " (killed from outside)" if is_kill else ""
        logger.error("epoch %d: %s%s; %d requests in the engine", self.epoch, failure, how, num_requests)
        failed = [entry for plan in lost if plan.step == failure.step for entry in plan.scheduled]
        guilty = self.suspects.judge(failed, is_death=isinstance(failure, WorkerLost), is_kill=is_kill)
        if guilty is not None:
            self.budget.convicted()
        self.cause = str(failure)
        try:
            capacity = self._restart(failure)
        finally:
            self.cause = None
        if isinstance(failure, WorkerLost):
            seconds, why = time.monotonic() - failed_at, "SIGKILL" if is_kill else failure.reason
            self._recorder.tell(
                f"rank {failure.rank} lost ({why}); replaced after {seconds:.1f} s; {num_requests} stream(s) resumed"
            )
        return capacity, None if guilty is None else self._convict(guilty, failure)

    def begin(self, weights: Weights | None, why: str) -> Capacity:
        """Begin the next epoch with these weights on every rank; no step may be in flight. `why`:
        what other threads are told meanwhile. Raises InvalidConfig if a rank cannot have them (see
        `Executor.load`), EngineDead if workers cannot be replaced.
        """
        return self._begin(lambda: self._executor.load(weights), why)

    def wake(self) -> Capacity:
        """Begin the next epoch after `Executor.sleep`. Raises as `begin`."""
        return self._begin(self._executor.restart, "the engine is waking up")

    def _begin(self, start: Callable[[], Capacity], why: str) -> Capacity:
        self.cause = why
        self.epoch += 1
        try:
            return start()
        except WorkerLost as lost:
            logger.error("epoch %d: %s, and: %s", self.epoch, why, lost)
            return self._try(lost)
        finally:
            self.cause = None

    def stepped(self, now: float) -> None:
        """A step has ended well."""
        self.budget.stepped()
        self.suspects.review()
        if self._failed_at is not None:
            logger.info("epoch %d: resumed after %.2f s", self.epoch, now - self._failed_at)
            self._recorder.measures.recovery_seconds += now - self._failed_at
            self._recorder.timeline.recovered.append(Recovered(self._failed_at, now))
            self._failed_at = None

    def _restart(self, failure: StepFailure) -> Capacity:
        """Restart until it succeeds; raises EngineDead."""
        try:
            return self._try(failure)
        except InvalidConfig as error:
            raise self._give_up(f"{failure}; the restart failed: {error}") from error

    def _try(self, failure: StepFailure) -> Capacity:
        """Restart until it succeeds, with new workers for lost ones; raises EngineDead,
        InvalidConfig.
        """
        while True:
            if isinstance(failure, WorkerLost):
                self._recorder.num_recoveries += 1
                pause = self.budget.take()
                if pause is None:
                    raise self._give_up(f"{failure}; max_restarts={self._max_restarts} are used up") from failure
                time.sleep(pause)
            else:
                self._recorder.num_failed_steps += 1
            self.epoch += 1
            try:
                return self._executor.restart()
            except WorkerLost as lost:
                logger.error("epoch %d: the restart failed: %s", self.epoch, lost)
                failure = lost

    def _give_up(self, reason: str) -> EngineDead:
        """There are no workers any more."""
        logger.critical("the engine has stopped: %s", reason)
        self._recorder.tell(f"the engine has stopped: {reason}")
        return EngineDead(reason)

    def _convict(self, group: SequenceGroup, failure: StepFailure) -> Verdict:
        if isinstance(failure, WorkerLost):
            message = f"worker processes died whenever this request was computed ({failure}); it is not tried again"
            verdict = Verdict(group, message, REQUEST_QUARANTINED)
        else:
            verdict = Verdict(group, f"each step with this request failed ({failure.reason})", STEP_FAILED)
        self._recorder.num_quarantined += 1
        self._recorder.tell(f"request {group.request.id} ended: {verdict.message}")
        return verdict


class RestartBudget:
    """How many consecutive restarts may fail."""

    def __init__(self, max_restarts: int, backoff_seconds: Sequence[float] = BACKOFF_SECONDS) -> None:
        self._max_restarts = max_restarts
        self._backoff_seconds = backoff_seconds
        self._num_in_a_row = 0
        self._num_steps = 0
        self._num_convictions = 0

    def take(self) -> float | None:
        """Seconds to wait before the next restart; None if the budget is used up."""
        self._num_steps = 0
        if self._num_in_a_row == self._max_restarts:
            return None
        self._num_in_a_row += 1
        return self._backoff_seconds[min(self._num_in_a_row, len(self._backoff_seconds)) - 1]

    def stepped(self) -> None:
        """A step has ended well."""
        self._num_steps += 1
        if self._num_steps == PROGRESS_STEPS:
            self._num_in_a_row = self._num_convictions = 0

    def convicted(self) -> None:
        """The consecutive failures had a cause, which is gone."""
        self._num_convictions += 1
        if self._num_convictions <= MAX_CONVICTIONS:
            self._num_in_a_row = 0
