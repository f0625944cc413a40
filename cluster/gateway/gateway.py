"""The gateway's work: sends requests to engine replicas, and retries if a replica is lost."""

from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from cluster.api.service import NOBODY, Arriving, Shortcut
from cluster.gateway.answering import Answering
from cluster.gateway.door import Door
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.requests.journals import Journals
from cluster.replica.calls.engines import Engines, PrefillEngines
from engine.admission.queue_limits import Load, Room
from engine.outputs import RequestOutput, Tokens
from engine.request import NO_KEY, Adapter, Request, Share


class Gateway:
    """The `Service` behind the HTTP API and the handle. Lives in one event loop."""

    def __init__(
        self,
        engines: Engines,
        *,
        max_attempts: int,
        patience: float,
        max_queue_seconds: float = 0,
        observers: Observers | None = None,
        prefill: PrefillEngines | None = None,
        starts_for_requests: bool = False,
    ) -> None:
        """`max_attempts`, `patience`: see `AttemptLimits`. `max_queue_seconds`: see `Door`.
        `prefill`: engines that compute long prompts, if there are any. `starts_for_requests`:
        whether an engine starts for a request where there is none.
        """
        self._starts_for_requests = starts_for_requests
        self._engines = engines
        self._observers = observers or Observers()
        self._journals = Journals(self._observers.figures.ended)
        limits = (max_attempts, patience)
        self._answering = Answering(engines, self._journals, self._observers, limits, prefill)
        self._replicas = self._answering.replicas
        self._connections = self._replicas.connections
        self.changes = self._replicas.changes
        reports, all_reports = self._answering.reports()
        self.monitoring = self._observers.monitoring(reports, all_reports, starts_for_requests=starts_for_requests)
        self.view = self._observers.view(engines, reports)
        self._door = Door(self._journals, self._connections.reports, max_queue_seconds)

    async def start(self, host: str) -> None:
        """Take deltas and reports on a free port of `host`."""
        await self._connections.start(host, self._every_second)
        await self._answering.start(host)

    async def close(self) -> None:
        await self._connections.close()
        await self._answering.close()

    def _every_second(self) -> None:
        self._door.look()
        self._replicas.take_back()
        self.changes.look(self.spawn)

    async def drain(self, grace: float) -> None:
        """See `Journals.drain`."""
        await self._journals.drain(grace)
        await self._observers.flush()

    def check_room(
        self,
        more: Load,
        seconds: float | None = None,
        share: Share = NO_KEY,
        arriving: Arriving = NOBODY,
        *,
        is_let_in: bool = False,
    ) -> None:
        """See `Service`."""
        self._door.check_room(more, seconds, share, arriving, is_let_in=is_let_in)

    def room(self, arriving: Load, *, by_key: bool = False) -> Room | None:
        """See `Service`."""
        return self._door.room(arriving, by_key=by_key)

    def generate(self, request: Request, shortcut: Shortcut | None = None) -> AsyncGenerator[RequestOutput, None]:
        """See `Service`. Raises InvalidRequest, InputProcessingError, Overloaded, Unavailable while
        the gateway shuts down, or EngineDead, FingerprintChanged or RequestQuarantined once no
        attempt is left.
        """
        return self._answering.generate(request, shortcut)

    async def tokenize(self, request: Request, *, with_texts: bool) -> Tokens:
        """See `Service`."""
        tokens: Tokens = await self._replicas.any.ask("tokenize", request, with_texts)
        return tokens

    async def detokenize(self, token_ids: list[int]) -> str:
        """See `Service`."""
        text: str = await self._replicas.any.ask("detokenize", token_ids)
        return text

    async def tokenizer_settings(self) -> dict[str, Any]:
        """See `Service`."""
        settings: dict[str, Any] = await self._replicas.any.ask("tokenizer_settings")
        return settings

    def abort(self, request_id: str) -> None:
        """End every request of that id; their streams finish with "abort"."""
        for journal in self._journals:
            if journal.request_id == request_id:
                journal.abort()

    async def health(self) -> list[str]:
        """One line per problem; empty if requests can be taken, if need be until an engine has
        started for them.
        """
        if self._journals.is_draining:
            return ["the server is shutting down"]
        reports = self._connections.reports()
        if any(report.problem is None for report in reports):
            return []
        if not reports:
            return [] if self._starts_for_requests else ["no engine replica is there"]
        return [f"{report.replica}: {report.problem}" for report in reports]

    async def deep_health(self) -> list[str]:
        """As `health`, after every replica has generated a token. Where requests start the first
        one, it is well that there is none.
        """
        problems = await self.health()
        if problems or not self._connections.reports():
            return problems
        return await self._engines.probe()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in the background, until it ends or the gateway is closed."""
        self._connections.spawn(work)

    async def try_adapter(self, adapter: Adapter) -> list[str]:
        """Have every replica generate a token with the adapter; returns one line per failure. Where
        requests start the first replica, so does this. Raises Unavailable if none starts.
        """
        if self._starts_for_requests and not self._connections.reports():
            await self._replicas.any.ask("tokenizer_settings")
        return await self._engines.probe(adapter)

    async def engines(self) -> list[dict[str, Any]]:
        """Each replica's last report, a fifth of a second old at most; also of those that compute
        prompts for the others (`computes_prompts`).
        """
        reports, _ = self._answering.reports()
        return [report.as_dict() for report in reports()]

    def held(self) -> dict[str, int]:
        """See `Application`."""
        return {"requests": len(self._journals), "waiting": len(self._journals.waiting)}

    async def worker_pids(self) -> dict[str, Sequence[int]]:
        """By replica, its workers' process ids in order of rank."""
        return dict(await self._engines.ask("worker_pids"))

    async def metrics(self) -> bytes:
        """All metrics, for operators' monitoring; see `Monitoring`."""
        return self.monitoring.text()

    async def ask(self, question: str, *args: Any) -> list[Any]:
        """See `Engines.ask`."""
        return await self._engines.ask(question, *args)

    async def why(self, request_id: str) -> dict[str, Any] | None:
        """Its last attempt's `Why`, whose seconds begin with those of "earlier attempts" if there
        were any; None if the request is unknown or forgotten.
        """
        asked = self._journals.history.find(request_id)
        answers: list[dict[str, Any] | None] = await self._engines.ask("why", asked.own_id) if asked else []
        told = next((answer for answer in answers if answer is not None), None)
        if asked is None or told is None or asked.seconds_lost == 0:
            return told
        return told | {"seconds": {"earlier attempts": asked.seconds_lost} | told["seconds"]}
