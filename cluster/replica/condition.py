"""How an engine replica is, as its gateways are told several times a second."""

import os
import time

from cluster.replica.delta_channel import EngineReport
from cluster.replica.serve_process import node_id
from engine.async_engine import AsyncEngine
from engine.fingerprint import fingerprint

STUCK_SECONDS = 10.0  # without a step's end while requests wait for one


class Condition:
    """Of an engine that has started."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        self.is_stopping = False  # the replica is told to end
        self.fingerprint = fingerprint(engine.arithmetic)
        self._engine = engine
        self._name = name
        self._num_steps = 0  # that had ended, when it was last looked at
        self._waiting_since = time.monotonic()  # for the next one to end

    def look(self) -> EngineReport:
        """To be called again and again: a step that does not end is known by what was seen
        before.
        """
        stats, now = self._engine.stats(), time.monotonic()
        if stats.num_steps != self._num_steps or not stats.num_requests_running:
            self._num_steps, self._waiting_since = stats.num_steps, now
        return EngineReport(
            self._name,
            node_id(),
            os.getpid(),
            self._problem(now - self._waiting_since),
            stats,
            self.fingerprint,
            self._engine.arithmetic,
        )

    def _problem(self, seconds: float) -> str | None:
        """Why it cannot answer now, a line; `seconds`: since a step ended, where one should."""
        if self.is_stopping:
            return "it is told to stop"
        if seconds > STUCK_SECONDS:
            return f"no step has ended for {seconds:.0f} s"
        return self._engine.problem()
