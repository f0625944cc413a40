"""Has a prefill engine compute a request's prompt before an engine answers it. Whatever goes wrong
there costs time alone: the engine that answers computes what it does not find.
"""

import asyncio
import logging
from collections.abc import Callable

from cluster.gateway.engines.changes import Changes
from cluster.gateway.engines.connections import Connections
from cluster.gateway.prefill.prompts import Computed, are_worth_it, prefilled, to_compute
from cluster.gateway.requests.journal import Journal
from cluster.gateway.requests.journals import Journals
from cluster.replica.calls.engines import PrefillEngines
from cluster.replica.refusals.lost import EngineFull, EngineLost
from cluster.replica.refusals.refusal import Refusal
from engine.request import Request

logger = logging.getLogger("squadron.gateway")

SECONDS = 30.0  # for a prompt, in the queue and after it; what takes longer is computed where it is answered

Count = Callable[[str], None]


class Prefill:
    """One gateway's, of one model. Lives in one event loop."""

    def __init__(self, engines: PrefillEngines, patience: float) -> None:
        """`patience`: see `Connections`."""
        self._is_shared, self._min_tokens = engines.is_shared, engines.min_tokens
        self._journals = Journals()
        self.connections = Connections(engines.engines, self._journals, patience)
        self.changes = Changes(engines.engines, self.connections.reports, patience)

    async def start(self, host: str) -> None:
        """Prefill engines report to a free port of `host`."""
        await self.connections.start(host, lambda: self.changes.look(self.connections.spawn))

    async def compute(self, journal: Journal, answering: Connections, count: Count) -> None:
        """If the request's prompt is worth it, have it computed, and the request told so; `count`
        is given what became of it. Ends early if the request does.
        """
        request = journal.request
        if not self._can_reach(answering):
            return
        if not are_worth_it(request, self._min_tokens, answering.calling.num_known):
            return
        computing = asyncio.create_task(self._have_computed(request))
        given_up = asyncio.create_task(journal.rest(min(SECONDS, journal.seconds_left)))
        try:
            await asyncio.wait((computing, given_up), return_when=asyncio.FIRST_COMPLETED)
            if journal.is_over:
                return
            computed = computing.result() if computing.done() else Computed("it took too long")
        finally:
            computing.cancel()
            given_up.cancel()
            await asyncio.wait((computing, given_up))
        count("computed" if computed.problem is None else "failed")
        if computed.problem is None:
            journal.request = prefilled(request, computed.blocks_at)
        else:
            logger.info("a prompt is computed where it is answered: %s", computed.problem)

    async def _have_computed(self, request: Request) -> Computed:
        with self._journals.open(to_compute(request)) as journal:
            try:
                call = self.connections.calling.begin(journal.request)
            except EngineFull as full:
                return Computed(full.reason)
            if call is None:
                return Computed("no prefill engine can take it")
            try:
                result = await call.result()
            except EngineLost as lost:
                return Computed(lost.reason)
            finally:
                call.cancel()
            if isinstance(result, Refusal):
                return Computed(result.message)
            report = self.connections.report_of(result) if self._is_shared else None
            problem = None if journal.last is None else journal.last.error  # the last delta came before
            return Computed(problem, None if report is None else report.blocks_at)

    def _can_reach(self, answering: Connections) -> bool:
        """Whether what is computed there is found by any that may answer, and is right there, and
        nobody has had them pause or sleep.
        """
        others = self.connections.reports()
        if not others or any(each.is_frozen for each in others):
            return False
        if {each.fingerprint for each in others} != {each.fingerprint for each in answering.reports()}:
            return False
        return not self._is_shared or all(each.blocks_at is not None for each in others)
