"""The engine replicas of a gateway: it sends requests to them over their connections, which bring
deltas and reports, and through Serve as long as none is connected that can take a request.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cluster.gateway.engines.changes import Changes
from cluster.gateway.engines.connections import Connections
from cluster.gateway.engines.stranded import Stranded
from cluster.gateway.requests.journal import Journal
from cluster.gateway.requests.journals import Journals
from cluster.replica.calls.engines import EngineCall, Engines
from cluster.replica.refusals.lost import EngineLost, RequestMoved
from cluster.replica.refusals.refusal import Refusal
from engine.errors import FingerprintChanged


class Replicas:
    """One gateway's."""

    def __init__(self, engines: Engines, journals: Journals, patience: float, computing: Changes | None = None) -> None:
        """`patience`: see `Connections`; `computing`: of the engines that compute prompts for
        these, if there are any.
        """
        self.connections = Connections(engines, journals, patience, is_asked=computing is not None)
        self.changes = Changes(engines, self.connections.reports, patience, computing)
        self.any = self.changes.any
        self._engines = engines
        self._history = journals.history
        self._stranded = Stranded(engines, self.connections.reports)
        self._with_serve: set[Journal] = set()

    @asynccontextmanager
    async def call(self, journal: Journal) -> AsyncIterator[None]:
        """Have a replica make the journal's next attempt, for as long as this is open; none if the
        request was ended before it.
        """
        if journal.is_over:
            yield
            return
        if journal.attempt > 0:
            self._history.begin_again(journal.request.id)
        call: EngineCall | None = self.connections.calling.begin(journal.request)
        if call is None:
            call = self._engines.generate(journal.request, self.connections.address)
            self._with_serve.add(journal)
        watch = asyncio.create_task(self._watch(call, journal))
        try:
            yield
        finally:
            self._with_serve.discard(journal)
            watch.cancel()
            call.cancel()

    def take_back(self) -> None:
        """Requests that Serve keeps for a replica that is still to start, once a connected one can
        take them: Serve does not know of one that leaves, and was in trouble for a moment.
        """
        if any(report.problem is None for report in self.connections.reports()):
            for journal in [each for each in self._with_serve if each.source is None]:
                journal.fail(RequestMoved("an engine replica that is connected can take it"))

    async def _watch(self, call: EngineCall, journal: Journal) -> None:
        """Tell the journal how the call ended. If it succeeded, the last delta has arrived or is on
        its way over that connection.
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
        elif self.connections.has(result):
            journal.source = result
        else:
            journal.fail(EngineLost("its connection ended before the last delta"))


def _nobody_is_left(refusal: Refusal) -> FingerprintChanged:
    return FingerprintChanged(
        f"every engine replica has another fingerprint than that of the request's tokens: {refusal.message}"
    )
