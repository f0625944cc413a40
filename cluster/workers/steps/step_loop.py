"""The loop in a worker's process that runs steps as the driver sends them."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from cluster.sockets.connection import Connection, ConnectionEnded
from cluster.workers.steps.inbox import Inbox
from cluster.workers.steps.messages import Fetched, Message, StepDone, StepFailed, encode
from engine.errors import in_a_line
from engine.outputs import FetchedBlocks, SamplerOutput
from engine.step import ExecuteModelRequest, LateMasks

logger = logging.getLogger("squadron.worker")


class StepWorker(Protocol):
    """What the loop needs from a worker."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether a step is run by `launch` and `finish`, the next being launched meanwhile; else
        by `execute`.
        """

    def execute(self, request: ExecuteModelRequest, late_masks: LateMasks) -> SamplerOutput | None:
        """Run one step; only the rank that speaks for the last stage has an output."""

    def launch(self, request: ExecuteModelRequest, late_masks: LateMasks) -> Any:
        """Begin one step, after those launched before."""

    def finish(self, step: Any) -> SamplerOutput | None:
        """Wait for the step that was launched the longest ago, in another thread."""

    def take_fetched(self) -> FetchedBlocks:
        """What no answer has told yet: see `SamplerOutput.fetched`."""

    def blames_peer(self, error: Exception) -> bool:
        """Whether another rank may have caused a step's error."""

    def is_beyond_repair(self, error: Exception) -> bool:
        """Whether no later step can succeed in this process after that error."""


def serve_steps(connection: Connection, worker: StepWorker) -> None:
    """Run steps until the driver ends the connection; then it is closed. Raises the error that is
    beyond repair.
    """
    inbox = Inbox(connection)
    loop = StepLoop(connection, worker, inbox.masks_of)
    try:
        while True:
            loop.take(inbox.next_step())
    except ConnectionEnded:
        return
    finally:
        loop.close()


class StepLoop:
    """Takes steps and sends answers, in order: one per step up to the first that fails.

    An asynchronous worker gets a step while a thread of the loop waits for the previous one.
    """

    def __init__(self, connection: Connection, worker: StepWorker, late_masks: LateMasks) -> None:
        self._connection = connection
        self._worker = worker
        self._late_masks = late_masks
        self._waiting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outputs")
        self._has_failed = False  # a failed step leaves the ranks in different states: no later step can be right
        self._has_told = False  # of that step
        self._fatal: Exception | None = None
        self._free_since_ns = 0  # when the last step that was answered had ended

    def take(self, request: ExecuteModelRequest) -> None:
        """Run a step, or launch it."""
        started_ns = time.perf_counter_ns()
        if self._has_failed:
            return
        if not self._worker.is_asynchronous:
            self._answer(request, started_ns, lambda: self._worker.execute(request, self._late_masks))
            return
        launched: Future[Any] = Future()
        try:
            launched.set_result(self._worker.launch(request, self._late_masks))
        except Exception as error:
            self._has_failed = True
            launched.set_exception(error)
        self._waiting.submit(self._answer, request, started_ns, lambda: self._worker.finish(launched.result()))

    def close(self) -> None:
        """Close the connection once no step is running. Raises the error that is beyond repair."""
        self._waiting.shutdown()
        self._connection.close()
        if self._fatal is not None:
            raise self._fatal

    def _answer(
        self, request: ExecuteModelRequest, started_ns: int, finish: Callable[[], SamplerOutput | None]
    ) -> None:
        """An error beyond repair ends the connection, which wakes the thread that receives from
        it.
        """
        try:
            if not self._has_told:
                answer = self._answer_of(request, started_ns, finish)
                fetched = self._worker.take_fetched()
                if len(fetched):
                    self._connection.send(encode(Fetched(request.epoch, request.step, fetched)))
                self._connection.send(encode(answer))
        except ConnectionEnded:
            return
        except Exception as error:
            self._fatal = error
            self._connection.end()

    def _answer_of(
        self, request: ExecuteModelRequest, started_ns: int, finish: Callable[[], SamplerOutput | None]
    ) -> Message:
        try:
            output = finish()
        except ConnectionEnded:  # while it waited for masks: the epoch is over
            raise
        except Exception as error:
            self._has_failed = self._has_told = True
            logger.exception("step %d of epoch %d failed", request.step, request.epoch)
            if self._worker.is_beyond_repair(error):
                raise
            return StepFailed(request.epoch, request.step, in_a_line(error), self._worker.blames_peer(error))
        ended_ns = time.perf_counter_ns()
        began_ns, self._free_since_ns = max(started_ns, self._free_since_ns), ended_ns
        return output or StepDone(request.epoch, request.step, ended_ns - began_ns)
