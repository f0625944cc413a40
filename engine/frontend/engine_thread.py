"""The one thread that touches an `LLMEngine`: it executes commands and runs steps."""

import logging
import threading

from engine.admission.queue_limits import NOTHING, Arriving, Load, QueueLimits, load_of
from engine.core.llm_engine import LLMEngine
from engine.errors import DEADLINE_EXCEEDED, FINGERPRINT_CHANGED, EngineDead, SquadronError
from engine.frontend.commands import Commands
from engine.frontend.controls import Controls
from engine.frontend.garbage import COLLECTOR
from engine.outputs import Sink, failed_request
from engine.records.stats import EngineStats
from engine.records.stats_log import StatsLog
from engine.request import Arrival, Request

logger = logging.getLogger("squadron.engine")


class EngineThread:
    """Public methods and fields are for other threads. `deliver` is called in this thread, once a
    step with the deltas of all requests.
    """

    stats: EngineStats  # as of the last step or command, once started

    def __init__(self, engine: LLMEngine, deliver: Sink) -> None:
        self.engine = engine
        self.commands = Commands()
        self._deliver = deliver
        self._arriving = Arriving()
        self.controls = Controls(engine, self.commands, self._enter, self.check_health)
        self._intermissions = self.controls.intermissions
        self._stopping = False
        self._is_collecting_rarely = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, sleep_level: int = 0) -> None:
        """Load the model and start; blocks. Raises InvalidConfig or WorkerLost. `sleep_level`: one
        that is not 0: start, and load the model, when the engine is woken up.
        """
        if sleep_level:
            self._intermissions.begin_asleep(sleep_level)
        else:
            self.engine.start()
        self.stats = self.engine.stats()
        self._log = StatsLog(self.stats)
        COLLECTOR.slow_down()
        self._is_collecting_rarely = True
        self._thread.start()

    def stop(self) -> None:
        """End running requests with an error; returns when the thread has ended. Idempotent."""
        self._stopping = True
        self.commands.wake()
        if self._thread.is_alive():
            self._thread.join()
        if self._is_collecting_rarely:
            self._is_collecting_rarely = False
            COLLECTOR.set_back()

    @property
    def queue_limits(self) -> QueueLimits:
        """Of the current cache, once the engine has started."""
        return QueueLimits.of(self.engine.config, self.stats)

    def check_queue(self, request: Request) -> None:
        """Raises Overloaded if too much waits already, from what is known without tokenizing."""
        if _may_be_refused(request):
            self._arriving.check(self.queue_limits, self.stats, load_of(request))

    def add(self, arrival: Arrival) -> None:
        """Queue a checked request; raises Overloaded, EngineDead."""
        limits = self.queue_limits if _may_be_refused(arrival.request) else None
        self._arriving.enter(limits, self.stats, _load_of(arrival))
        self.commands.post(self._add, arrival)

    def abort(self, request_id: str) -> None:
        """Unknown ids are ignored."""
        try:
            self.commands.post(self._abort, request_id)
        except EngineDead:
            return  # with all requests

    def check_health(self) -> None:
        """Raise EngineDead if no request can be answered any more."""
        if self.engine.dead is not None:
            raise EngineDead(self.engine.dead)
        if self._stopping:
            raise EngineDead("the engine is shut down")

    @property
    def is_dead(self) -> bool:
        """Whether no request can be answered any more."""
        return self._stopping or self.engine.dead is not None

    def problem(self) -> str | None:
        """One line on why no token can come now; None if all is well."""
        cause = self.engine.recovery.cause
        if cause is not None:
            return f"workers are restarting: {cause}"
        return "the engine is shut down" if self._stopping else self.engine.dead

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception as error:  # a bug of ours: log it, end all requests, accept no more
                logger.exception("the engine's turn failed")
                self.engine.dead = self.engine.dead or f"{type(error).__name__}: {error}"
                self._deliver(self.engine.abandon(self.engine.dead))
        self.engine.dead = self.engine.dead or "the engine is shut down"
        self.commands.close()
        self.commands.do_all()
        self._intermissions.proceed()
        self._deliver(self.engine.abandon(self.engine.dead))

    def _turn(self) -> None:
        """Execute commands, run a step, and wait if there is nothing to do."""
        self.commands.do_all()
        for arrival, message in self._intermissions.take_late():
            self._arriving.queued(_load_of(arrival))
            self._refuse(arrival, message, DEADLINE_EXCEEDED)
        if self.engine.has_work:
            self._deliver(self.engine.step())
        self._intermissions.proceed()
        self.stats = self.engine.stats()
        self._arriving.counted()
        if self.engine.config.log_stats:
            self._log.update(self.stats)
        if not self.engine.has_work:
            self.commands.wait(self._intermissions.seconds_left())

    def _abort(self, request_id: str) -> None:
        held = self._intermissions.drop(request_id)
        if held is not None:
            self._arriving.queued(_load_of(held))
        self.engine.abort_request(request_id)

    def _add(self, arrival: Arrival) -> None:
        """One that is held still counts as arriving."""
        if not self._intermissions.holds(arrival):
            self._enter(arrival)

    def _enter(self, arrival: Arrival) -> None:
        self._arriving.queued(_load_of(arrival))
        wanted = arrival.request.resume.fingerprint
        if wanted not in (None, self.engine.epochs.fingerprint):  # which was another one when it was let in
            message = f"its tokens have the fingerprint {wanted}, and this engine has {self.engine.epochs.fingerprint}"
            return self._refuse(arrival, message, FINGERPRINT_CHANGED)
        try:
            self.engine.add_request(arrival)
        except SquadronError as error:  # it was checked before it was queued, but the engine may have stopped since
            self._refuse(arrival, str(error))
        except Exception as error:  # a failure of this request only
            logger.exception("request %s could not be added", arrival.request.id)
            self._refuse(arrival, f"{type(error).__name__}: {error}")

    def _refuse(self, arrival: Arrival, message: str, code: str | None = None) -> None:
        request = arrival.request
        failed = failed_request(request.id, request.resume.attempt, arrival.prompt_token_ids, message)
        failed.error_code = code
        self._deliver([failed])


def _load_of(arrival: Arrival) -> Load:
    """What it adds to what waits for a first token."""
    if not _may_be_refused(arrival.request):
        return NOTHING
    return load_of(arrival.request, len(arrival.prompt_token_ids))


def _may_be_refused(request: Request) -> bool:
    """Not if it has tokens: it was let in where they come from."""
    return not any(request.resume.output_ids)
