"""How a gateway has a request answered: its prompt may be computed elsewhere first, then engine
replicas make attempts.
"""

from collections.abc import AsyncGenerator

from cluster.api.service import Shortcut
from cluster.gateway.engines.replicas import Replicas
from cluster.gateway.monitoring.monitoring import Reports
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.prefill.prefill import Prefill
from cluster.gateway.requests.attempts import AttemptLimits, Attempts
from cluster.gateway.requests.journal import Journal
from cluster.gateway.requests.journals import Journals
from cluster.replica.calls.engines import Engines, PrefillEngines
from engine.outputs import RequestOutput
from engine.request import Request


class Answering:
    """One gateway's."""

    def __init__(
        self,
        engines: Engines,
        journals: Journals,
        observers: Observers,
        limits: tuple[int, float],
        prefill: PrefillEngines | None,
    ) -> None:
        """`limits`: those of `AttemptLimits`. `prefill`: engines for long prompts, if there are."""
        self._prefill = None if prefill is None else Prefill(prefill, limits[1])
        computing = None if self._prefill is None else self._prefill.changes
        self.replicas = Replicas(engines, journals, limits[1], computing)
        self._journals = journals
        self._observers = observers
        self._limits = AttemptLimits(*limits)

    async def start(self, host: str) -> None:
        """Prefill engines report to a free port of `host`."""
        if self._prefill is not None:
            await self._prefill.start(host)

    async def close(self) -> None:
        if self._prefill is not None:
            await self._prefill.connections.close()

    def reports(self) -> tuple[Reports, Reports]:
        """See `Monitoring`; also of those that compute prompts."""
        own = self.replicas.connections
        if self._prefill is None:
            return own.reports, own.all_reports
        other = self._prefill.connections
        return lambda: own.reports() + other.reports(), lambda: own.all_reports() + other.all_reports()

    async def generate(self, request: Request, shortcut: Shortcut | None) -> AsyncGenerator[RequestOutput, None]:
        """See `Gateway.generate`."""
        self._journals.check_open()
        with self._observers.watcher.watch(request) as watch, self._journals.open(watch.request, shortcut) as journal:
            watch.begin(journal)
            if self._prefill is not None:
                await self._compute(journal, self._prefill)
            attempts = Attempts(journal, self._limits)
            while not journal.is_told:
                watch.attempt(journal)
                async with attempts.one(), self.replicas.call(journal):
                    async for delta in journal:
                        attempts.gained()
                        yield delta

    async def _compute(self, journal: Journal, prefill: Prefill) -> None:
        """See `Prefill.compute`. Meanwhile it waits for none of the engines that answer."""
        with self._journals.waiting.without(journal.request):
            await prefill.compute(journal, self.replicas.connections, self._observers.figures.prefilled)
