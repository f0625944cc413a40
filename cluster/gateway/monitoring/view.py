"""What a page shows of the engines of one model, second by second."""

import asyncio
import time
from collections.abc import Collection
from typing import Any

from cluster.gateway.monitoring.monitoring import Reports
from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.messages import EngineReport

FRESH_SECONDS = 0.5  # for which a view serves whoever asks: engines have no more to tell, however many look
PATIENCE_SECONDS = 1.0  # that a page waits for what replicas tell


class EngineView:
    """One gateway's. A replica is asked only while somebody looks at it, and not again before it
    has answered. Lives in one event loop.
    """

    def __init__(self, model_name: str, engines: Engines, reports: Reports) -> None:
        """`reports`: of the engine replicas there are."""
        self._model_name = model_name
        self._engines = engines
        self._reports = reports
        self._asked: dict[str, float] = {}  # by replica: when, and so the next two
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, dict[str, Any]] = {}  # of one that does not answer now, the last
        self._silent: set[str] = set()  # those that did not answer the last question

    def replicas(self) -> list[str]:
        """Their names, in the order in which they are shown."""
        return [report.replica for report in self._in_order()]

    async def now(self, seen: Collection[str]) -> list[dict[str, Any]]:
        """Each replica's report; of those that are `seen`, in `view`, also what is in the engine:
        see `engine.records.view`.
        """
        self._forget()
        wanted = [name for name in self.replicas() if name in seen]
        asking = [task for name in wanted if (task := self._ask(name)) is not None]
        if asking:
            await asyncio.wait(asking, timeout=PATIENCE_SECONDS)
        return [
            report.in_short()
            | {
                "model": self._model_name,
                "is_seen": report.replica in wanted,
                "is_silent": report.replica in wanted and self._is_silent(report.replica),
                "view": self._told.get(report.replica) if report.replica in wanted else None,
            }
            for report in self._in_order()
        ]

    def _in_order(self) -> list[EngineReport]:
        """Those that compute prompts come last."""
        return sorted(self._reports(), key=lambda report: (report.computes_prompts, report.replica))

    def _is_silent(self, replica: str) -> bool:
        return replica in self._asking or replica in self._silent

    def _ask(self, replica: str) -> asyncio.Task[None] | None:
        """The question that it has not answered yet, a new one if it is time; None if it is not."""
        if replica not in self._asking and time.monotonic() - self._asked.get(replica, float("-inf")) > FRESH_SECONDS:
            self._asked[replica] = time.monotonic()
            self._asking[replica] = asyncio.create_task(self._learn(replica))
        return self._asking.get(replica)

    async def _learn(self, replica: str) -> None:
        try:
            told = await self._engines.ask_one(replica, "view")
        finally:
            del self._asking[replica]
        if told is None:
            self._silent.add(replica)
        else:
            self._silent.discard(replica)
            self._told[replica] = told

    def _forget(self) -> None:
        """Those that are gone."""
        there = set(self.replicas())
        for name in self._asked.keys() - there:
            if (task := self._asking.get(name)) is not None:
                task.cancel()
            del self._asked[name]
            self._told.pop(name, None)
            self._silent.discard(name)
