"""The connections of engine replicas to a gateway, over which their deltas and reports come."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from cluster.gateway.engines.calling import Calling
from cluster.gateway.engines.reach import INTRODUCTION_SECONDS, Reach
from cluster.gateway.requests.journals import Journals
from cluster.replica.calls.engines import Engines
from cluster.replica.delta_channel.messages import EngineReport, GatewayAddress
from cluster.replica.delta_channel.server import DeltaServer
from cluster.replica.refusals.lost import EngineLost
from engine.errors import EngineDead, going_on

logger = logging.getLogger("squadron.gateway")


class Connections:
    """One gateway's. If a replica is lost, silent or in trouble, each of its requests is told
    through its journal.
    """

    def __init__(self, engines: Engines, journals: Journals, patience: float, *, is_asked: bool = False) -> None:
        """`patience`: seconds that a replica which has taken a request may be in trouble.
        `is_asked`: see `Calling`.
        """
        self._engines = engines
        self._journals = journals
        self._patience = patience
        self._server = DeltaServer(journals.accept, self._on_lost, self._on_silent, self._on_told)
        self.calling = Calling(engines, self._server, is_asked=is_asked)
        self._tasks: set[asyncio.Task[None]] = set()
        self.address: GatewayAddress

    async def start(self, host: str, every_second: Callable[[], None]) -> None:
        """Receive deltas and reports on a free port of `host`; from then on, call `every_second`
        about once a second.
        """
        self.address = await self._server.start(host)
        await self._engines.introduce(self.address, set())
        self.spawn(self._look_after_replicas(every_second))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._server.close()

    def has(self, connection: str) -> bool:
        return self._server.is_connected(connection)

    def report_of(self, connection: str) -> EngineReport | None:
        """See `DeltaServer.report_of`."""
        return self._server.report_of(connection)

    def reports(self) -> list[EngineReport]:
        """Each connected replica's last report, a fifth of a second old at most."""
        return self._server.reports()

    def all_reports(self) -> list[EngineReport]:
        """The last reports of replicas that are gone, then those of `reports`."""
        return [*self._server.last_words, *self._server.reports()]

    def _on_lost(self, connection: str) -> None:
        journals = self._journals.of(connection)
        if journals:
            logger.warning("the connection to an engine replica ended; %d requests continue on others", len(journals))
        for journal in journals:
            journal.fail(EngineLost("its connection ended"))

    def _on_silent(self, report: EngineReport, seconds: float) -> None:
        """Kill the replica: it must not return, nor keep requests that it has not taken yet. Its
        requests continue on others.
        """
        logger.error("%s, process %d, is silent for %.1f s: it is killed", report.replica, report.pid, seconds)
        self.spawn(self._engines.kill(report.replica))

    def _on_told(self, report: EngineReport, beginnings: bytes, lost: bytes) -> None:
        self.calling.prefixes.hear(report.replica, report.num_cleared, beginnings, lost)

    async def _look_after_replicas(self, every_second: Callable[[], None]) -> None:
        reach = Reach(self._engines, self.address)
        while True:
            await asyncio.sleep(INTRODUCTION_SECONDS)
            with going_on(logger, "looking after engine replicas"):
                self._fail_those_in_trouble()
                every_second()
                is_served = any(journal.source is not None for journal in self._journals)
                await reach.look({report.replica for report in self.reports()}, is_served=is_served)

    def _fail_those_in_trouble(self) -> None:
        """If a replica has taken a request and cannot answer, the request waits for it as long as
        it would wait for a replica to take it.
        """
        for connection, problem in self._server.in_trouble(self._patience):
            for journal in self._journals.of(connection):
                journal.fail(EngineDead(f"the engine replica could not continue for {self._patience:.0f} s: {problem}"))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in the background, until it ends or the connections are closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
