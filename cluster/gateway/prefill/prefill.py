"""Has a prefill engine compute a request's prompt before an engine answers it. Whatever goes wrong
there costs time alone: the engine that answers computes what it does not find.
"""

import asyncio
import logging
from collections.abc import Callable

from cluster.gateway.engines.connections import Connections
from cluster.gateway.prefill.prompts import Computed, Prompts, prefilled, to_compute
from cluster.gateway.requests.journal import Journal
from cluster.gateway.requests.journals import Journals
from cluster.replica.calls.engines import PrefillEngines
from cluster.replica.delta_channel.messages import EngineReport
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal
from engine.request import Request

logger = logging.getLogger("squadron.gateway")

SECONDS = 30.0  # for a prompt, in the queue and after it; what takes longer is computed where it is answered

Count = Callable[[str], None]


class Prefill:
    """One gateway's, of one model. Lives in one event loop."""

    def __init__(self, engines: PrefillEngines, patience: float) -> None:
        """`patience`: see `Connections`."""
        self._is_shared = engines.is_shared
        self._journals = Journals()
        self.connections = Connections(engines.engines, self._journals, patience)
        self._prompts = Prompts(engines.min_tokens)

    async def compute(self, journal: Journal, reports: list[EngineReport], count: Count) -> bool:
        """If the request's prompt is worth it, have it computed, and the request told so; whether
        it was worth it. `reports`: of the engines that answer; `count` is given what became of it.
        Ends early if the request does.
        """
        request = journal.request
        if not self._can_reach(reports) or not self._prompts.are_worth_it(request):
            return False
        computing = asyncio.create_task(self._have_computed(request))
        given_up = asyncio.create_task(journal.rest(min(SECONDS, journal.seconds_left)))
        try:
            await asyncio.wait((computing, given_up), return_when=asyncio.FIRST_COMPLETED)
            if journal.is_over:
                return True
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
        return True

    def answered(self, request: Request) -> None:
        """An engine that answers has the prompt now, wherever it was computed. Before, it is new to
        them: the request may end, or be refused, and nobody has it.
        """
        self._prompts.remember(request)

    async def _have_computed(self, request: Request) -> Computed:
        with self._journals.open(to_compute(request)) as journal:
            call = self.connections.calling.begin(journal.request)
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

    def _can_reach(self, reports: list[EngineReport]) -> bool:
        """Whether what is computed there is found by any that may answer, and is right there."""
        others = self.connections.reports()
        if not others or {each.fingerprint for each in others} != {each.fingerprint for each in reports}:
            return False
        return not self._is_shared or all(each.blocks_at is not None for each in others)
