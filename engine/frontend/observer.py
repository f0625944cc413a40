"""What other threads may read of a running engine."""

from functools import cached_property, partial
from typing import Any

from engine.admission.queue_limits import QueueLimits
from engine.checkpoint.fingerprint import tokenizer_digest
from engine.frontend.engine_thread import EngineThread
from engine.outputs import Why
from engine.records.measures import Measured
from engine.records.recorder import Event
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

    @cached_property
    def arithmetic(self) -> dict[str, str]:
        """What tokens depend on beside the request, by name; once the engine has started. See
        `engine.checkpoint.fingerprint`.
        """
        engine = self._thread.engine
        tokenizer = tokenizer_digest(engine.config.tokenizer or engine.config.model)
        ends = " ".join(map(str, sorted(engine.admission.limits.eos_token_ids)))
        return {**engine.arithmetic, "tokenizer": tokenizer, "eos_token_ids": ends}

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

    async def trace(self) -> dict[str, Any]:
        """The last steps as a Chrome trace; see `Timeline.chrome_trace`."""
        return await self._ask(self._thread.engine.recorder.timeline.chrome_trace)

    async def why(self, request_id: str) -> Why:
        """See `Requests.why`."""
        return await self._ask(partial(self._thread.engine.requests.why, request_id))

    async def steps_of(self, request_id: str, since: float, most: int) -> list[StepRecord]:
        """See `Timeline.steps_of`."""
        return await self._ask(partial(self._thread.engine.recorder.timeline.steps_of, request_id, since, most))
