"""The Serve deployment of the engine, which owns the workers, answers the gateways and tells them
how it is.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from cluster.logs import log_beside_serve
from cluster.owner import Owner
from cluster.replica.answers import Answers
from cluster.replica.calls.engines import Refusal
from cluster.replica.condition import Condition
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.departure import Departure
from cluster.replica.requests import Requests
from cluster.replica.serve_process import actor_name, end_at_sigterm, end_process
from cluster.replica.threads.tokenizing import Tokenizing
from cluster.replica.traces import Traces
from cluster.telemetry.tracing import NO_TELEMETRY, Telemetry
from cluster.workers.executor import make_executor
from engine.config import EngineConfig
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import RequestOutput, Tokens
from engine.records.recorder import Event
from engine.request import Request

logger = logging.getLogger("squadron.engine")

REPORT_SECONDS = 0.2
END_SECONDS = 10.0  # for a replica to end once it has handed back its requests
FLUSH_SECONDS = 1.0  # for spans that wait, at the end


class EngineDeployment:
    """One engine and its workers, which live in the replica's placement group and die with it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: EngineConfig, owner: Owner, telemetry: Telemetry = NO_TELEMETRY, patience: float = 0
    ) -> None:
        """`patience`: seconds for which a replica that is to end waits for the next one."""
        log_beside_serve()
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._name = actor_name()
        if self._name:
            end_at_sigterm()
        self._engine = AsyncEngine(config, make_executor(config), on_outputs=self._publish)
        self._answers = Answers(self._engine)
        self._condition = Condition(self._engine, self._name)
        self._traces = Traces(self._engine, self._name, telemetry)
        self._requests = Requests(self._engine, self._condition, self._traces)
        self._departure: Departure | None = None  # once the engine has started, in Serve
        self._tokenizing = Tokenizing(self._engine)
        self._reporting: asyncio.Task[None] | None = None  # once the engine has started
        self._leaving: asyncio.Task[None] | None = None  # once it is told to end
        self._engine.tokenizer.start()
        await asyncio.to_thread(self._engine.start)
        logger.info("fingerprint %s: %s", self._condition.fingerprint, self._engine.observer.arithmetic)
        if self._name:
            self._departure = Departure(self._name, config, patience)
        self._reporting = asyncio.create_task(self._report())

    async def generate(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        """See `Requests.take`."""
        return await self._requests.take(request, gateway)

    async def tokenize(self, request: Request, with_texts: bool) -> Tokens | Refusal:
        """See `Tokenizing.tokenize`."""
        return await self._tokenizing.tokenize(request, with_texts=with_texts)

    async def detokenize(self, token_ids: list[int]) -> str | Refusal:
        """All of it as one text."""
        return await self._tokenizing.detokenize(token_ids)

    async def connect(self, gateway: GatewayAddress) -> None:
        """Report to the gateway from now on."""
        with suppress(OSError):
            await self._requests.connect(gateway)

    async def stats(self) -> dict[str, Any]:
        """The engine's `EngineStats`."""
        return self._answers.stats()

    async def events(self) -> tuple[str, tuple[Event, ...]]:
        """The replica's name, and what happened to it last."""
        return self._name, self._engine.observer.events()

    async def probe(self) -> str | None:
        """Generate a token, by every rank; what went wrong, a line."""
        return await self._answers.probe()

    async def trace(self) -> dict[str, Any]:
        """The last steps as a Chrome trace."""
        return await self._engine.observer.trace()

    async def why(self, request_id: str) -> dict[str, float] | None:
        """Seconds by phase of a request; None if this replica does not know it."""
        return await self._answers.why(request_id)

    async def model_info(self) -> dict[str, Any]:
        """What the HTTP API needs to know of the model."""
        return self._answers.model_info()

    def check_health(self) -> None:
        """Raises EngineDead, or ToldToStop after a SIGTERM; Serve then replaces the replica."""
        self._engine.check_health()
        if self._departure is not None:
            self._departure.check()

    async def stay(self) -> None:
        """See `Departure.stay`."""
        assert self._departure is not None
        await self._departure.stay()

    async def stop(self, caller: Owner) -> None:
        """End the workers; running requests are handed back. Raises NotOwner."""
        self._owner.check(caller, "to stop an engine")
        self._hand_back()
        await self._traces.flush(FLUSH_SECONDS)
        await asyncio.to_thread(self._engine.shutdown)

    async def __del__(self) -> None:
        for task in (self._reporting, self._leaving):
            if task is not None:
                task.cancel()
        await self._traces.flush(FLUSH_SECONDS)
        await asyncio.to_thread(self._engine.shutdown)
        await self._requests.close()
        self._tokenizing.close()

    async def _report(self) -> None:
        """Tell the gateways how the replica is, and see whether it is to end."""
        while True:
            self._requests.report()
            if self._departure is not None and self._departure.is_told() and self._leaving is None:
                self._leaving = asyncio.create_task(self._leave(self._departure))
            if self._engine.is_dead and self._name and not self._condition.is_stopping:
                await self._give_up()
            await asyncio.sleep(REPORT_SECONDS)

    async def _leave(self, departure: Departure) -> None:
        """Serve until the next replica is ready, if it has room, and hand back what still runs."""
        if not self._condition.is_stopping and await departure.has_room(self._engine.observer.stats().num_gpu_blocks):
            self._condition.is_leaving = True
            await departure.wait()
        if not self._condition.is_stopping:
            self._hand_back()
        await asyncio.sleep(REPORT_SECONDS)  # for the answers that are on their way
        departure.leave(END_SECONDS)

    def _hand_back(self) -> None:
        """See `Requests.hand_back`; no more are taken."""
        self._condition.is_stopping = True
        logger.info("%d requests are handed back", len(self._requests))
        self._requests.hand_back()

    async def _give_up(self) -> None:
        """A replica that cannot answer any more is replaced as soon as its process has ended."""
        await asyncio.sleep(REPORT_SECONDS)  # for the answers that are on their way
        await asyncio.to_thread(self._engine.shutdown)
        end_process()

    def _publish(self, deltas: list[RequestOutput]) -> None:
        """Called in the engine's thread, once a step."""
        self._loop.call_soon_threadsafe(self._requests.send, deltas)
