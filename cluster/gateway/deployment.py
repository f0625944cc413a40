"""The Serve deployment of the gateway: what clients talk to, over HTTP or by handle."""

import asyncio
import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import ray
import uvicorn.protocols.http.auto
from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.api.app import build
from cluster.api.edge.lost_gateway import TellTaken
from cluster.api.edge.unread import UnreadLimit
from cluster.api.keys.key_ring import KeyRing
from cluster.api.model import Model
from cluster.api.proxy import BareProxyWarning, check_ingress, tell_patience
from cluster.gateway import handle
from cluster.gateway.engines.questions import ask_all, ask_those_that_answer
from cluster.gateway.engines.serve_engines import ServeEngines, running_replicas
from cluster.gateway.gateway import Gateway
from cluster.gateway.monitoring.monitoring import Monitoring, own_bounds
from cluster.gateway.monitoring.watch import Watcher
from cluster.gateway.stop_signal import has_sigterm_come, note_sigterm
from cluster.gateway.streams.stream_store import StreamStoreClient
from cluster.logs import log_beside_serve
from cluster.metrics.counters import Counters
from cluster.metrics.ledger import Ledger
from cluster.metrics.ray_export import export_figures
from cluster.metrics.text import FigureFamilies
from cluster.owner import Owner
from cluster.replica.serve_process import actor_name
from cluster.telemetry.tracing import Telemetry, make_tracer


class ToldToStop(Exception):
    """Somebody who is not Serve wants this process to end."""


class GatewayDeployment:
    """The ingress: the HTTP API, and the methods that other Ray jobs call (see
    `cluster.gateway.handle`).
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        engines: DeploymentHandle[Any],
        owner: Owner,
        model_name: str,
        api_keys: KeyRing,
        allowed_hosts: tuple[str, ...],
        allowed_origins: tuple[str, ...],
        num_gateways: int,
        max_attempts: int,
        patience: float,
        max_queue_seconds: float,
        stream_resume: bool,
        insecure_no_key: bool,
        open_metrics: bool,
        strict_fields: bool,
        telemetry: Telemetry,
    ) -> None:
        log_beside_serve()
        note_sigterm()
        await check_ingress(has_keys=bool(api_keys), insecure_no_key=insecure_no_key)
        # Of the server that Serve starts in this process where a load balancer listens (HAProxy).
        uvicorn.protocols.http.auto.AutoHTTPProtocol = UnreadLimit
        self._is_told_to_stop = False
        replicas = ServeEngines(engines)
        tracer = make_tracer(telemetry, actor_name())
        watcher = Watcher(model_name, tracer, logs_requests=telemetry.log_requests)
        self._model = await replicas.model_info()
        self._counters = Counters(own_bounds(self._model["max_model_len"]))
        self._gateway = _ServeGateway(
            replicas,
            max_attempts=max_attempts,
            patience=patience,
            max_queue_seconds=max_queue_seconds,
            watcher=watcher,
            monitoring=Monitoring(model_name, self._counters),
        )
        self._owner = owner
        self._patience = patience
        self._model_name, self._api_keys = model_name, api_keys
        self._allowed_hosts = allowed_hosts
        self._allowed_origins = allowed_origins
        self._num_gateways = num_gateways
        self._strict_fields = strict_fields
        self._open_metrics = open_metrics
        self._streams = StreamStoreClient(serve.get_replica_context().app_name) if stream_resume else None
        await asyncio.to_thread(tell_patience, patience)
        api_keys.look()
        api_keys.watch()
        await self._gateway.start(ray.util.get_node_ip_address())

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = build(
            self._gateway,
            Model(name=self._model_name, **self._model),
            api_keys=self._api_keys,
            allowed_hosts=self._allowed_hosts,
            allowed_origins=self._allowed_origins,
            num_gateways=self._num_gateways,
            streams=self._streams,
            strict_fields=self._strict_fields,
            counters=self._counters,
            open_metrics=self._open_metrics,
        )
        app.add_middleware(BareProxyWarning)
        app.add_middleware(TellTaken, patience=self._patience)
        return app

    def check_health(self) -> None:
        """Raises ToldToStop after a SIGTERM: Serve then starts another gateway at once, and ends
        this one when its last stream has.
        """
        self._is_told_to_stop |= has_sigterm_come()
        if self._is_told_to_stop:
            raise ToldToStop("this gateway's process got a SIGTERM")

    async def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        return await handle.generate(self._gateway, request)

    async def stream(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(handle.stream(self._gateway, request)) as answers:
            async for answer in answers:
                yield answer

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        return await handle.chat(self._gateway, request)

    async def drain(self, caller: Owner, grace: float) -> None:
        """See `Gateway.drain`. For good; raises NotOwner."""
        self._owner.check(caller, "to drain a gateway")
        await self._gateway.drain(grace)

    async def abort(self, request_id: str) -> None:
        """End the request on whichever gateway it is."""
        await _all_gateways().broadcast("abort_here", request_id).results_async()

    async def abort_here(self, request_id: str) -> None:
        self._gateway.abort(request_id)

    async def why_here(self, request_id: str) -> dict[str, float] | None:
        """What this gateway knows, and none asks on."""
        return await Gateway.why(self._gateway, request_id)

    async def exchange_here(self, ledger: Ledger) -> Ledger:
        """What this gateway knows of all figures, for what another one does."""
        return self._gateway.exchange(ledger)


class _ServeGateway(Gateway):
    """One of several, of which each may be asked about the others' requests."""

    async def why(self, request_id: str) -> dict[str, float] | None:
        seconds = await super().why(request_id)
        if seconds is not None:
            return seconds
        answers = await ask_all(_all_gateways(), "why_here", request_id)
        return next((answer for answer in answers if answer is not None), None)

    async def start(self, host: str) -> None:
        await super().start(host)
        self._spawn(export_figures(self.figures))

    async def figures(self) -> FigureFamilies:
        gateways = _all_gateways()
        if running_replicas(gateways) != {actor_name()}:  # with no other one there is nobody to ask
            own = self.exchange(Ledger())
            for ledger in await ask_those_that_answer(gateways, "exchange_here", own):
                self.exchange(ledger)
        return await super().figures()


@functools.cache
def _all_gateways() -> DeploymentHandle[Any]:
    me = serve.get_replica_context()
    return serve.get_deployment_handle(me.deployment, me.app_name)
