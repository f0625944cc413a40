"""An engine replica's condition, which its gateways are told several times a second."""

import os
import time

from cluster.replica.delta_channel.messages import EngineReport
from cluster.replica.serve_process import node_id
from engine.checkpoint.fingerprint import fingerprint
from engine.frontend.async_engine import AsyncEngine

STUCK_SECONDS = 10.0  # without the end of a step while requests wait for one


class Condition:
    """The condition of a started engine."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        self.is_stopping = False  # the replica is told to end
        self.fingerprint = fingerprint(engine.observer.arithmetic)
        self._engine = engine
        self._name = name
        self._num_steps = 0  # number of ended steps at the last look
        self._waiting_since = time.monotonic()  # since when the next one is awaited

    def look(self) -> EngineReport:
        """Must be called repeatedly: a stuck step is recognized by comparison with earlier
        calls.
        """
        stats, now = self._engine.observer.stats(), time.monotonic()
        if stats.num_steps != self._num_steps or not stats.num_requests_running:
            self._num_steps, self._waiting_since = stats.num_steps, now
        return EngineReport(
            self._name,
            node_id(),
            os.getpid(),
            self._problem(now - self._waiting_since),
            stats,
            self.fingerprint,
            self._engine.observer.arithmetic,
            self._engine.observer.queue_limits(),
        )

    def _problem(self, seconds: float) -> str | None:
        """One line on why it cannot answer now; `seconds` since a step ended, if one should
        have.
        """
        if self.is_stopping:
            return "it is told to stop"
        if seconds > STUCK_SECONDS:
            return f"no step has ended for {seconds:.0f} s"
        return self._engine.observer.problem()
