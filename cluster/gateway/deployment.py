"""The Serve deployment of the gateway: what clients call, over HTTP or by handle."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import ray
from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from cluster.api.exchange import Answer
from cluster.api.model import Model
from cluster.gateway.ask import open_batches
from cluster.gateway.engines.serve_engines import ServeEngines
from cluster.gateway.handle import handle, routes
from cluster.gateway.http import Http
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.options import GatewayOptions
from cluster.gateway.peers import PeerGateway
from cluster.gateway.streams.response_store import ResponseStoreClient
from cluster.gateway.streams.stream_store import StreamStoreClient
from cluster.logs import log_beside_serve
from cluster.metrics.ledger import Ledger
from cluster.owner import Owner
from cluster.replica.serve_process import actor_name
from cluster.stop_signal import StopSignal


class GatewayDeployment:
    """The ingress: the HTTP API, and the methods that other Ray jobs call (see
    `cluster.gateway.handle`).
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, engines: DeploymentHandle[Any], owner: Owner, options: GatewayOptions
    ) -> None:
        log_beside_serve()
        self._stop_signal = StopSignal()
        self._owner = owner
        self._http = Http(options.http, options.patience)
        await self._http.check()
        replicas = ServeEngines(engines)
        self._model = Model(name=options.model_name, **await replicas.model_info())
        self._observers = Observers.configured(
            options.model_name, self._model.max_model_len, options.telemetry, actor_name()
        )
        self._gateway = PeerGateway(
            replicas,
            max_attempts=options.max_attempts,
            patience=options.patience,
            max_queue_seconds=options.max_queue_seconds,
            observers=self._observers,
        )
        self._streams = StreamStoreClient(engines.app_name) if options.stream_resume else None
        seconds = options.stored_response_seconds
        self._responses = ResponseStoreClient(engines.app_name, seconds) if seconds else None
        self._routes = self._http.make_inner_app(self._gateway, self._model, kept=self._responses)
        self._batches = open_batches(options.files_path, engines.app_name)
        await self._http.start()
        await self._gateway.start(ray.util.get_node_ip_address())

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._http.make_app(
            self._gateway,
            self._model,
            streams=self._streams,
            kept=self._responses,
            counters=self._observers.figures.counters,
            batches=self._batches,
        )

    def check_health(self) -> None:
        """Raises ToldToStop after a SIGTERM: Serve then starts another gateway at once, and ends
        this one when its last stream has.
        """
        self._stop_signal.check()

    async def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        return await handle.generate(self._gateway, self._model, request)

    async def stream(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(handle.stream(self._gateway, self._model, request)) as answers:
            async for answer in answers:
                yield answer

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        return await handle.chat(self._gateway, self._model, request)

    async def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
        return await routes.post(self._routes, path, body, headers)

    async def events(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(routes.events(self._routes, path, body, headers)) as events:
            async for event in events:
                yield event

    async def ask(self, url: str, body: bytes, key: str | None = None) -> Answer:
        """What the HTTP API answers to a POST of JSON for which nobody waits, of the API key of
        that name: a line of a batch.
        """
        return await self._http.ask(url, body, key)

    async def drain(self, caller: Owner, grace: float) -> None:
        """See `Gateway.drain`. For good; raises NotOwner."""
        self._owner.check(caller, "to drain a gateway")
        await self._gateway.drain(grace)

    async def abort(self, request_id: str) -> None:
        """End the request on whichever gateway it is."""
        await self._gateway.abort_anywhere(request_id)

    async def abort_here(self, request_id: str) -> None:
        self._gateway.abort(request_id)

    async def why_here(self, request_id: str) -> dict[str, float] | None:
        """What this gateway knows, and none asks on."""
        return await self._gateway.why_here(request_id)

    async def exchange_here(self, ledger: Ledger) -> Ledger:
        """What this gateway knows of all figures, for what another one does."""
        return self._gateway.monitoring.exchange(ledger)
