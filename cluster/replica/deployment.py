"""The Serve deployment of the engine, which owns the workers, answers the gateways and tells them
how it is.
"""

import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from cluster.logs import log_beside_serve
from cluster.owner import Owner
from cluster.replica.admission_threads import AdmissionThreads
from cluster.replica.calls.engines import EngineStopping, Refusal
from cluster.replica.condition import Condition
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import EngineReport, GatewayAddress
from cluster.replica.running import RunningRequests
from cluster.replica.serve_process import actor_name, end_at_sigterm, is_being_stopped
from cluster.replica.totals import Totals
from cluster.replica.traces import Traces
from cluster.telemetry.tracing import NO_TELEMETRY, Telemetry, make_tracer
from cluster.workers.executor import make_executor
from engine.config import EngineConfig
from engine.errors import EngineDead, FingerprintChanged, SquadronError
from engine.frontend.async_engine import AsyncEngine
from engine.outputs import RequestOutput
from engine.records.recorder import Event
from engine.request import Request
from engine.sampling_params import SamplingParams

logger = logging.getLogger("squadron.engine")

REPORT_SECONDS = 0.2
FLUSH_SECONDS = 1.0  # for spans that wait, at the end


class EngineDeployment:
    """One engine and its workers, which live in the replica's placement group and die with it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: EngineConfig, owner: Owner, telemetry: Telemetry = NO_TELEMETRY
    ) -> None:
        log_beside_serve()
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._name = actor_name()
        if self._name:
            end_at_sigterm()
        self._running = RunningRequests()
        self._engine = AsyncEngine(config, make_executor(config), on_outputs=self._publish)
        self._admissions = AdmissionThreads(self._engine)
        self._client = DeltaClient(self._running.lose)
        tracer = make_tracer(telemetry, self._name)
        self._traces = Traces(self._engine, self._name, tracer, with_steps=telemetry.collect_detailed_traces)
        self._reporting: asyncio.Task[None] | None = None  # once the engine has started
        self._engine.tokenizer.start()
        await asyncio.to_thread(self._engine.start)
        self._condition = Condition(self._engine, self._name)
        self._totals = Totals(self._engine, config)
        logger.info("fingerprint %s: %s", self._condition.fingerprint, self._engine.observer.arithmetic)
        self._reporting = asyncio.create_task(self._report())

    async def generate(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        """Take a request and stay until its last delta has been sent to the gateway; the name of
        the connection that it went over.
        """
        try:
            self._check(request)
            connection = await self._client.connect(gateway)
        except SquadronError as error:
            return Refusal.of(error)
        except OSError as error:
            return Refusal("engine_dead", f"it cannot reach the gateway: {error}")
        attempt, fingerprint = request.resume.attempt, self._condition.fingerprint
        self._client.send(
            gateway, [RequestOutput(request.id, attempt, [], [], finished=False, fingerprint=fingerprint)]
        )
        running = self._running.begin(request.id, gateway)
        trace = self._traces.begin(request)
        adding = self._admissions.add(request)
        try:
            await asyncio.wrap_future(adding)
            await running.done
        except SquadronError as error:
            return Refusal.of(error)
        finally:
            self._running.end(request.id)
            self._traces.end(trace, running.metrics, is_finished=running.has_been_answered)
            if not running.is_finished:
                # Behind the add, which goes on where the caller went away meanwhile.
                adding.add_done_callback(lambda _: self._engine.abort(request.id))
        return connection

    async def connect(self, gateway: GatewayAddress) -> None:
        """Report to the gateway from now on."""
        with suppress(OSError):
            await self._client.connect(gateway)
            self._client.report(self._look())

    async def stats(self) -> dict[str, Any]:
        """The engine's `EngineStats`."""
        return asdict(self._engine.observer.stats())

    async def events(self) -> tuple[str, tuple[Event, ...]]:
        """The replica's name, and what happened to it last."""
        return self._name, self._engine.observer.events()

    async def probe(self) -> str | None:
        """Generate a token, by every rank; what went wrong, a line."""
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        try:
            async for output in self._engine.generate(Request("probe", [0], params)):
                if output.error is not None:
                    return output.error
        except SquadronError as error:
            return str(error)
        return None

    async def trace(self) -> dict[str, Any]:
        """The last steps as a Chrome trace."""
        return await self._engine.observer.trace()

    async def why(self, request_id: str) -> dict[str, float] | None:
        """Seconds by phase of a request; None if this replica does not know it."""
        try:
            return {phase: seconds for phase, seconds in (await self._engine.observer.why(request_id)).items()}
        except KeyError:
            return None

    async def model_info(self) -> dict[str, Any]:
        """What the HTTP API needs to know of the model."""
        model = self._engine.model_config
        return {
            "max_model_len": self._engine.max_model_len,
            "vocab_size": model.vocab_size,
            "default_sampling": model.default_sampling,
            "special_ids": self._engine.tokenizer.special_ids,
            "tool_format": self._engine.tokenizer.tool_format,
            "reasoning_ids": self._engine.tokenizer.reasoning_ids,
            "text_limit": self._engine.tokenizer.text_limit(self._engine.max_model_len),
        }

    def check_health(self) -> None:
        """Raises EngineDead; Serve then replaces the replica."""
        self._engine.check_health()

    async def stop(self, caller: Owner) -> None:
        """End the workers; what runs is given back. Raises NotOwner."""
        self._owner.check(caller, "to stop an engine")
        self._hand_back()
        await self._traces.flush(FLUSH_SECONDS)
        await asyncio.to_thread(self._engine.shutdown)

    async def __del__(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        await self._traces.flush(FLUSH_SECONDS)
        await asyncio.to_thread(self._engine.shutdown)
        self._running.finish_all(EngineDead("the engine is shut down"))
        self._admissions.close()
        await self._client.close()

    async def _report(self) -> None:
        """Tell the gateways how the replica is, and see whether it is to end."""
        while True:
            self._client.report(self._look())
            if not self._condition.is_stopping and is_being_stopped():
                self._hand_back()
            if self._engine.is_dead and self._name and not self._condition.is_stopping:
                await self._leave()
            await asyncio.sleep(REPORT_SECONDS)

    def _look(self) -> EngineReport:
        return replace(self._condition.look(), totals=self._totals.now())

    def _hand_back(self) -> None:
        """Another replica goes on with what runs here, from what the gateways have after this
        step.
        """
        self._condition.is_stopping = True
        logger.info("told to stop: %d requests are given back", len(self._running))
        self._running.fail_all(EngineStopping("its engine replica is told to stop"))

    async def _leave(self) -> None:
        """A replica that cannot answer any more is replaced as soon as its process has ended."""
        await asyncio.sleep(REPORT_SECONDS)  # for the answers that are on their way
        await asyncio.to_thread(self._engine.shutdown)
        os._exit(1)

    def _check(self, request: Request) -> None:
        if self._condition.is_stopping:
            raise EngineStopping("this engine replica is told to stop")
        wanted, own = request.resume.fingerprint, self._condition.fingerprint
        if wanted not in (None, own):
            raise FingerprintChanged(f"its tokens are of {wanted}, and this engine is {own}")
        self._engine.check_health()
        self._engine.check_queue(request)

    def _publish(self, deltas: list[RequestOutput]) -> None:
        """Called in the engine's thread, once a step."""
        self._loop.call_soon_threadsafe(self._send, deltas)

    def _send(self, deltas: list[RequestOutput]) -> None:
        for gateway, news in self._running.take(deltas, is_alive=not self._engine.is_dead).items():
            self._client.send(gateway, news)
