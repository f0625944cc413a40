"""The driver's end of the step channel: one epoch's connections, the thread that reads them, and
the first failure.
"""

import logging
import threading
import time
from concurrent.futures import Future

from cluster.sockets.connection import ChannelError, Connection, ConnectionEnded
from cluster.workers.steps.deadline import StepDeadline
from cluster.workers.steps.messages import Fetched, StepDone, StepFailed, decode, encode
from cluster.workers.steps.rank_sockets import RankSockets
from cluster.workers.steps.steps_in_flight import StepFuture, StepsInFlight
from engine.errors import StepFailure, StepRaised, WorkerLost, in_a_line
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest, StepMasks

logger = logging.getLogger("squadron.executor")

# A rank's death also fails its peers' collectives, perhaps before it is noticed itself: wait that
# long for the real cause.
_ROOT_CAUSE_SECONDS = 0.3
_TICK_SECONDS = 0.5  # between checks of the deadline


class StepChannel:
    """Broadcasts steps, gathers answers. `connections` and `nodes` (their nodes' names, for the
    log) are in rank order.

    The thread that waits for a step reads the sockets; while none waits, a thread of the channel
    does.
    """

    def __init__(
        self, connections: list[Connection], nodes: list[str], deadline: StepDeadline, num_sampling: int | None = None
    ) -> None:
        """`num_sampling`: how many ranks sample, the last ones; None: all."""
        self._nodes = nodes
        self._num_sampling = num_sampling
        self._in_flight = StepsInFlight(len(connections), deadline)
        self._submitting = threading.Lock()
        self._suspected = False
        self._reading = threading.Lock()  # of the sockets, and of the time of the next deadline check
        self._next_look = 0.0
        self._sockets = RankSockets(connections)
        self._attended = False  # a thread has waited for a step recently
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read_unattended, name="steps", daemon=True)
        self._reader.start()

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        """Send a step to every rank; its future ends in the last stage's output, or in a
        StepFailure.
        """
        future = StepFuture(self._read_until)
        frame = encode(request)
        with self._submitting:
            if self._in_flight.add(request.step, len(request.input_ids), future):
                self._sockets.post(frame)
        return future

    def supply(self, masks: StepMasks) -> None:
        """Send a step's late part to the ranks that sample."""
        frame = encode(masks)
        with self._submitting:
            self._sockets.post(frame, self._num_sampling)

    def lose(self, rank: int, reason: str) -> None:
        """Fail every step in flight and all later ones; only the first call has an effect, and none
        after `stop`.
        """
        self._end(WorkerLost(rank, reason, self._in_flight.oldest_unanswered(rank)), is_news=True)

    def stop(self) -> None:
        """Accept no more steps; from now on workers may disconnect."""
        self._end(WorkerLost(0, "the workers were stopped"), is_news=False)

    def close(self) -> None:
        """Stop, and end every connection, which makes its worker leave its loop."""
        self.stop()
        self._closing.set()
        self._sockets.end()
        self._reader.join()
        self._sockets.close()

    def _end(self, failure: StepFailure, *, is_news: bool) -> None:
        futures = self._in_flight.fail(failure)
        if futures is None:
            return
        if is_news:
            what = "lost" if isinstance(failure, WorkerLost) else "raised"
            when = "no step in flight" if failure.step is None else f"step {failure.step} in flight"
            node = self._nodes[failure.rank]
            logger.error("worker %d on node %s %s, %s: %s", failure.rank, node, what, when, failure.reason)
        for future in futures:
            future.set_exception(failure)
        if futures:
            self._sockets.wake()  # a thread that waits for one of them is reading

    def _read_until(self, future: Future[SamplerOutput]) -> None:
        """Read in this thread until a step is done."""
        self._attended = True
        if not self._reading.acquire(blocking=False):
            self._sockets.wake()
            self._reading.acquire()
        try:
            while not future.done():
                self._read_once()
        finally:
            self._reading.release()

    def _read_unattended(self) -> None:
        """Read while no thread waits for a step, until every connection has ended."""
        while self._sockets.are_open:
            if self._attended or self._reading.locked():
                self._attended = False
                self._closing.wait(_TICK_SECONDS)
            else:
                with self._reading:
                    self._read_once()

    def _read_once(self) -> None:
        """Read answers, and send what the sockets did not take at once."""
        began = time.monotonic()
        for rank, frames in self._sockets.read(_TICK_SECONDS):
            self._serve(rank, frames)
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _TICK_SECONDS
            overdue = self._in_flight.find_overdue(slept=now - began - _TICK_SECONDS)
            if overdue is not None:
                rank, step, seconds = overdue
                self.lose(rank, f"it is alive but has not answered step {step} for {seconds:.1f} s")

    def _serve(self, rank: int, frames: list[bytearray] | Exception) -> None:
        """Take what a rank sent; after an error, the rank is lost."""
        try:
            if isinstance(frames, Exception):
                raise frames
            for frame in frames:
                self._take(rank, frame)
        except Exception as error:  # of any kind: steps must not wait forever for this thread
            self.lose(rank, "its process ended" if isinstance(error, ConnectionEnded) else in_a_line(error))
            self._sockets.drop(rank)

    def _take(self, rank: int, frame: bytearray) -> None:
        match decode(frame):
            case SamplerOutput() as output:
                self._in_flight.answer(rank, output.step, int(output.execute_ns[0]), output)
            case StepDone() as done:
                self._in_flight.answer(rank, done.step, done.execute_ns, None)
            case Fetched() as told:
                self._in_flight.tell_fetched(told.step, told.fetched)
            case StepFailed() as failed if failed.is_collective:
                self._suspect(StepRaised(rank, failed.reason, failed.step))
            case StepFailed() as failed:
                self._end(StepRaised(rank, failed.reason, failed.step), is_news=True)
            case other:
                raise ChannelError(f"a worker sent {type(other).__name__}")

    def _suspect(self, failure: StepRaised) -> None:
        """The cause may be this rank or a peer: use it unless a better one arrives soon."""
        if not self._suspected:
            self._suspected = True
            timer = threading.Timer(_ROOT_CAUSE_SECONDS, self._end, (failure,), {"is_news": True})
            timer.daemon = True
            timer.start()
