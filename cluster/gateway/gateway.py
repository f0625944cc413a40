"""The gateway's work: puts requests to engine replicas, and tries again where one is lost."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from cluster.api.errors import ShuttingDown
from cluster.api.service import Shortcut
from cluster.gateway.door import Door
from cluster.gateway.engines.reach import INTRODUCTION_SECONDS, Reach
from cluster.gateway.engines.stranded import Stranded
from cluster.gateway.monitoring.monitoring import Monitoring
from cluster.gateway.monitoring.watch import Watcher
from cluster.gateway.requests.attempts import Attempts
from cluster.gateway.requests.history import Asked, History
from cluster.gateway.requests.journal import Journal
from cluster.gateway.requests.journals import Journals
from cluster.metrics.ledger import Ledger
from cluster.metrics.text import FigureFamilies, render
from cluster.replica.calls.engines import EngineCall, Engines, Refusal
from cluster.replica.calls.lost import EngineLost
from cluster.replica.delta_channel.messages import EngineReport, GatewayAddress
from cluster.replica.delta_channel.server import DeltaServer
from engine.admission.queue_limits import Load
from engine.errors import EngineDead, FingerprintChanged
from engine.outputs import RequestOutput
from engine.request import NO_KEY, Request, Share

logger = logging.getLogger("squadron.gateway")

FLUSH_SECONDS = 1.0  # for spans that wait, at the end


class Gateway:
    """The `Service` behind the HTTP API and the handle. Lives in one event loop."""

    def __init__(
        self,
        engines: Engines,
        *,
        max_attempts: int,
        patience: float,
        max_queue_seconds: float = 0,
        watcher: Watcher | None = None,
        monitoring: Monitoring | None = None,
    ) -> None:
        """`max_attempts`: see `Attempts`. `patience`: seconds that a request waits for a replica
        that can go on with it. `max_queue_seconds`: see `Door`. `watcher`: of requests; None:
        nobody watches.
        """
        self._engines = engines
        self._max_attempts = max_attempts
        self._patience = patience
        self._watcher = watcher or Watcher()
        self._monitoring = monitoring or Monitoring()
        self._journals = Journals(self._monitoring.ended)
        self._history = History()
        self._server = DeltaServer(self._journals.accept, self._on_lost, self._on_silent)
        self._stranded = Stranded(engines, self._server.reports)
        self._door = Door(self._journals, self._server.reports, max_queue_seconds)
        self._last_turn = asyncio.Lock()  # of the one request that makes its last attempt
        self._is_draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._address: GatewayAddress

    async def start(self, host: str) -> None:
        """Take deltas and reports on a free port of `host`."""
        self._address = await self._server.start(host)
        await self._engines.introduce(self._address, set())
        self._spawn(self._look_after_replicas())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._server.close()

    async def drain(self, grace: float) -> None:
        """Take no more requests; those that run are finished, or after `grace` seconds ended with
        an error.
        """
        self._is_draining = True
        logger.info("shutting down: %d requests have %.0f s to end", sum(1 for _ in self._journals), grace)
        try:
            async with asyncio.timeout(grace):
                await self._journals.until_all_ended()
        except TimeoutError:
            for journal in self._journals:
                journal.fail(ShuttingDown())
        await asyncio.to_thread(self._watcher.flush, FLUSH_SECONDS)

    def check_room(self, more: Load, seconds: float | None = None, share: Share = NO_KEY) -> None:
        """See `Service`."""
        self._door.check_room(more, seconds, share)

    async def generate(self, request: Request, shortcut: Shortcut | None = None) -> AsyncGenerator[RequestOutput, None]:
        """See `Service`. Raises InvalidRequest, InputProcessingError, Overloaded, Unavailable while
        the gateway shuts down, or EngineDead, FingerprintChanged or RequestQuarantined once no
        attempt is left.
        """
        if self._is_draining:
            raise ShuttingDown()
        with self._watcher.watch(request) as watch, self._journals.open(watch.request, shortcut) as journal:
            asked = self._history.add(request.id, journal.request.id)
            attempts = Attempts(journal, self._max_attempts, self._patience, self._last_turn)
            while not journal.is_told:
                watch.attempt(journal)
                async with attempts.one(), self._call(journal, asked):
                    async for delta in journal:
                        attempts.gained()
                        yield delta

    def abort(self, request_id: str) -> None:
        """End every request of that id; their streams finish with "abort"."""
        for journal in self._journals:
            if journal.request_id == request_id:
                journal.abort()

    async def health(self) -> list[str]:
        """What is wrong, a line each; nothing if requests can be taken."""
        if self._is_draining:
            return ["the server is shutting down"]
        reports = self._server.reports()
        if any(report.problem is None for report in reports):
            return []
        return [f"{report.replica}: {report.problem}" for report in reports] or ["no engine replica is there"]

    async def deep_health(self) -> list[str]:
        """As `health`, having had every replica generate a token."""
        return await self.health() or await self._engines.probe()

    async def engines(self) -> list[dict[str, Any]]:
        """Each replica's last report, a fifth of a second old at most."""
        return [asdict(report) for report in self._server.reports()]

    async def metrics(self) -> bytes:
        """What operators' monitoring reads; see `Monitoring`."""
        return render(await self.figures())

    async def figures(self) -> FigureFamilies:
        """Those of the whole application."""
        self.exchange(Ledger())
        return self._monitoring.figures(self._server.reports())

    def exchange(self, other: Ledger) -> Ledger:
        """Tell another gateway all figures known here, and learn what it knows."""
        return self._monitoring.exchange(other, [*self._server.last_words, *self._server.reports()])

    async def trace(self) -> dict[str, Any]:
        """The last steps of every replica, each a process of the trace."""
        traces = await self._engines.ask("trace")
        events = [event | {"pid": pid} for pid, trace in enumerate(traces) for event in trace["traceEvents"]]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    async def why(self, request_id: str) -> dict[str, float] | None:
        """Seconds by phase, those before the last attempt as "earlier attempts"; None for one that
        is not known (any more).
        """
        asked = self._history.find(request_id)
        answers: list[dict[str, float] | None] = await self._engines.ask("why", asked.own_id) if asked else []
        seconds = next((answer for answer in answers if answer is not None), None)
        if asked is None or seconds is None or asked.seconds_lost == 0:
            return seconds
        return {"earlier attempts": asked.seconds_lost} | seconds

    @asynccontextmanager
    async def _call(self, journal: Journal, asked: Asked) -> AsyncIterator[None]:
        """Have a replica make the journal's next attempt, for as long as this is open."""
        if journal.attempt > 0:
            asked.begin_again()
        call = self._engines.generate(journal.request, self._address)
        watch = asyncio.create_task(self._watch(call, journal))
        try:
            yield
        finally:
            watch.cancel()
            call.cancel()

    async def _watch(self, call: EngineCall, journal: Journal) -> None:
        """Tell the journal how the call ended. If well, the last delta has come or is on its way
        over that connection.
        """
        try:
            result = await call.result()
        except EngineLost as lost:
            journal.fail(lost)
            return
        if isinstance(result, Refusal):
            is_foreign = result.reason == "other_arithmetic"
            is_stranded = is_foreign and await self._stranded.is_stranded(journal.fingerprint)
            journal.fail(_nobody_is_left(result) if is_stranded else result.to_exception())
        elif self._server.is_connected(result):
            journal.source = result
        else:
            journal.fail(EngineLost("its connection ended before the last delta"))

    def _on_lost(self, connection: str) -> None:
        journals = self._journals.of(connection)
        if journals:
            logger.warning("the connection to an engine replica ended; %d requests go on elsewhere", len(journals))
        for journal in journals:
            journal.fail(EngineLost("its connection ended"))

    def _on_silent(self, report: EngineReport, seconds: float) -> None:
        """Its requests go on elsewhere; and it must not come back, nor keep what was sent to it and
        not taken yet.
        """
        logger.error("%s, process %d, is silent for %.1f s: it is killed", report.replica, report.pid, seconds)
        self._spawn(self._engines.kill(report.replica))

    async def _look_after_replicas(self) -> None:
        reach = Reach(self._engines, self._address)
        while True:
            await asyncio.sleep(INTRODUCTION_SECONDS)
            self._fail_those_in_trouble()
            self._door.look()
            is_served = any(journal.source is not None for journal in self._journals)
            await reach.look({report.replica for report in self._server.reports()}, is_served=is_served)

    def _fail_those_in_trouble(self) -> None:
        """A replica that has taken a request and cannot answer is waited for as long as one that
        would take it.
        """
        for connection, problem in self._server.in_trouble(self._patience):
            for journal in self._journals.of(connection):
                journal.fail(EngineDead(f"the engine replica could not go on for {self._patience:.0f} s: {problem}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _nobody_is_left(refusal: Refusal) -> FingerprintChanged:
    return FingerprintChanged(
        f"the request has tokens, and every engine replica computes otherwise than theirs did: {refusal.message}"
    )
