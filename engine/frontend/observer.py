"""What other threads may read of a running engine."""

from collections.abc import Sequence
from functools import partial

from engine.admission.queue_limits import QueueLimits
from engine.executor import Weights
from engine.frontend.engine_thread import EngineThread
from engine.outputs import Why
from engine.records.measures import Measured
from engine.records.recorder import Event
from engine.records.snapshot import Snapshot, snapshot
from engine.records.stats import EngineStats
from engine.records.timeline import StepRecord


class Observer:
    """Questions that are awaited are answered by the engine's thread, between two steps; the others
    at once, in any thread.
    """

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._ask = thread.commands.ask

    def stats(self) -> EngineStats:
        """As of the last step or command."""
        return self._thread.stats

    def load(self) -> float:
        """See `EngineStats.load`. The cache of an engine that has never been awake has no size yet:
        of its requests only seats are counted.
        """
        engine, held = self._thread.engine, self._thread.controls.intermissions
        return self._thread.stats.load(
            max_num_seqs=engine.config.max_num_seqs,
            block_size=engine.config.block_size,
            num_held_seqs=held.num_held_seqs,
            num_held_tokens=held.num_held_tokens if engine.epochs.has_begun else 0,
        )

    @property
    def arithmetic(self) -> dict[str, str]:
        """What tokens depend on beside the request, by name; once the engine has started. See
        `engine.checkpoint.fingerprint`.
        """
        return self._thread.engine.epochs.arithmetic

    @property
    def fingerprint(self) -> str:
        """The hash of it; empty where the engine has never been awake."""
        return self._thread.engine.epochs.fingerprint

    @property
    def weights(self) -> Weights | None:
        """That the ranks have; None: those that are configured."""
        return self._thread.engine.epochs.weights

    @property
    def is_frozen(self) -> bool:
        """Whether it begins no step because it was told so."""
        return self._thread.engine.is_frozen

    @property
    def sleep_level(self) -> int:
        """0: awake; see `Intermissions`."""
        return self._thread.controls.intermissions.sleep_level

    def rest(self) -> str | None:
        """One line on the call that has to come before any token; None if there is none."""
        intermissions = self._thread.controls.intermissions
        if intermissions.sleep_level:
            return "it sleeps until it is told to wake up"
        return "it is paused until it is told to resume" if intermissions.is_paused else None

    @property
    def adapters(self) -> tuple[list[str], list[str]]:
        """Names of those of the requests that run, and of those that wait."""
        queues = self._thread.engine.scheduler.queues
        running, waiting = list(queues.running_adapters), list(queues.waiting.adapters)  # each at once, as of a moment
        return sorted(running), sorted(waiting)

    @property
    def num_cleared(self) -> int:
        """How many times the cache has lost all that it held."""
        return self._thread.engine.keeping.beginnings.num_cleared

    def lost_beginnings(self) -> bytes:
        """See `Beginnings.take`."""
        return self._thread.engine.keeping.beginnings.take()

    def measured(self) -> Measured:
        """As of now."""
        return self._thread.engine.recorder.measures.copy()

    def events(self) -> tuple[Event, ...]:
        """The last ones."""
        return self._thread.engine.recorder.events

    def queue_limits(self) -> QueueLimits:
        """Of the current cache."""
        return self._thread.queue_limits

    def problem(self) -> str | None:
        """One line on why no token can come now; None if all is well."""
        return self._thread.problem()

    @property
    def seconds_in_flight(self) -> float | None:
        """See `Recorder.seconds_in_flight`."""
        return self._thread.engine.recorder.seconds_in_flight

    async def steps_after(self, step: int, most: int) -> list[StepRecord]:
        """See `Timeline.steps_after`."""
        return await self._ask(partial(self._thread.engine.recorder.timeline.steps_after, step, most))

    def worker_pids(self) -> Sequence[int]:
        """See `Executor`."""
        return self._thread.engine.executor.worker_pids

    def worker_nodes(self) -> Sequence[str]:
        """See `Executor`."""
        return self._thread.engine.executor.worker_nodes

    async def snapshot(self) -> Snapshot:
        """See `snapshot`; not answered while workers restart."""
        engine = self._thread.engine
        return await self._ask(lambda: snapshot(engine.recorder, engine.scheduler))

    async def why(self, request_id: str) -> Why:
        """See `Requests.why`."""
        return await self._ask(partial(self._thread.engine.requests.why, request_id))

    async def steps_of(self, request_id: str, since: float, most: int) -> list[StepRecord]:
        """See `Timeline.steps_of`."""
        return await self._ask(partial(self._thread.engine.recorder.timeline.steps_of, request_id, since, most))
