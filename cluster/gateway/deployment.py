"""The Serve deployment of the gateway: what clients talk to, over HTTP or by handle."""

import asyncio
import functools
import logging
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve._private.common import ReplicaState
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from cluster.api.app import build
from cluster.api.errors import Unavailable
from cluster.api.model import Model
from cluster.api.proxy import BareProxyWarning
from cluster.gateway import handle
from cluster.gateway.gateway import Gateway
from cluster.gateway.reach import BLIND_SECONDS, INTRODUCTION_SECONDS
from cluster.gateway.stop_signal import has_sigterm_come, note_sigterm
from cluster.gateway.stream_store import JournalClient
from cluster.logs import log_beside_serve
from cluster.owner import Owner
from cluster.replica.delta_channel import GatewayAddress
from cluster.replica.engines import Refusal
from cluster.replica.lost import EngineLost
from cluster.workers.ray_errors import reason_of
from engine.request import Request

logger = logging.getLogger("squadron.gateway")

SERVE_NAMESPACE = "serve"  # where Serve names its actors
CONNECT_SECONDS = 3.0  # for every replica to connect to this gateway
QUESTION_SECONDS = 10.0  # for an operator's question to every replica
RETRY_AFTER = 5.0  # seconds
PROBE_SECONDS = 20.0  # for a token; requests that came before are served before


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
        api_keys: tuple[str, ...],
        allowed_hosts: tuple[str, ...],
        max_attempts: int,
        patience: float,
        stream_resume: bool,
        strict_fields: bool,
    ) -> None:
        log_beside_serve()
        note_sigterm()
        self._is_told_to_stop = False
        replicas = _ServeEngines(engines)
        self._gateway = _ServeGateway(replicas, max_attempts=max_attempts, patience=patience)
        self._owner = owner
        self._model_name = model_name
        self._api_keys = api_keys
        self._allowed_hosts = allowed_hosts
        self._strict_fields = strict_fields
        self._streams = JournalClient(serve.get_replica_context().app_name) if stream_resume else None
        self._model = await replicas.model_info()
        await self._gateway.start(ray.util.get_node_ip_address())

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = build(
            self._gateway,
            Model(name=self._model_name, **self._model),
            api_keys=self._api_keys,
            allowed_hosts=self._allowed_hosts,
            streams=self._streams,
            strict_fields=self._strict_fields,
        )
        app.add_middleware(BareProxyWarning)
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
        return await self._gateway.why_here(request_id)


class _ServeGateway(Gateway):
    """One of several, of which each may be asked about the others' requests."""

    async def why(self, request_id: str) -> dict[str, float] | None:
        return await self.why_here(request_id) or await _ask_why(_all_gateways(), "why_here", request_id)

    async def why_here(self, request_id: str) -> dict[str, float] | None:
        return await super().why(request_id)


@functools.cache
def _all_gateways() -> DeploymentHandle[Any]:
    me = serve.get_replica_context()
    return serve.get_deployment_handle(me.deployment, me.app_name)


async def _ask(replicas: DeploymentHandle[Any], method: str, *args: Any) -> list[Any]:
    """What each replica answers, without those that have died; raises Unavailable if another one
    does not answer.
    """
    try:
        answers = await replicas.broadcast(method, *args).results_async(
            timeout_s=QUESTION_SECONDS, return_exceptions=True
        )
    except (RayServeException, TimeoutError):
        message = f"Not every replica answered within {QUESTION_SECONDS:.0f} s"
        raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER) from None
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, RayActorError):
            message = f"A replica could not answer: {reason_of(answer)}"
            raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER)
    return [answer for answer in answers if not isinstance(answer, Exception)]


async def _ask_why(replicas: DeploymentHandle[Any], method: str, request_id: str) -> dict[str, float] | None:
    answers: list[dict[str, float] | None] = await _ask(replicas, method, request_id)
    return next((answer for answer in answers if answer is not None), None)


class _ServeEngines:
    """The engine replicas behind a Serve handle."""

    def __init__(self, engines: DeploymentHandle[Any]) -> None:
        self._engines = engines
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="asking")  # one: the controller may not answer

    async def model_info(self) -> dict[str, Any]:
        """What the HTTP API needs to know of the model, once there is a replica. Ends the process
        if it does not hear of one that runs: see `leave`.
        """
        while True:
            were_running = await self.are_running()
            asking = self._engines.model_info.remote()
            try:
                async with asyncio.timeout(BLIND_SECONDS):
                    model: dict[str, Any] = await asking
                return model
            except RayActorError:  # the next one is asked
                await asyncio.sleep(INTRODUCTION_SECONDS)
            except TimeoutError:
                asking.cancel()
                if were_running and await self.are_running():
                    logger.error("engine replicas run, and none told of its model for %.0f s", BLIND_SECONDS)
                    await self.leave()

    def generate(self, request: Request, gateway: GatewayAddress) -> "_ServeCall":
        return _ServeCall(self._engines.generate.remote(request, gateway))

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        running = _running(self._engines)
        if running and running <= connected:
            return True
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                answers = await self._engines.broadcast("connect", gateway).results_async(return_exceptions=True)
        except (RayServeException, TimeoutError):  # no replica is there yet, or one is frozen
            return False
        return any(not isinstance(answer, Exception) for answer in answers)

    async def are_running(self) -> bool:
        """As Serve's controller says: requests go by what this process was told of its changes, as
        long as it was.
        """
        try:
            asking = asyncio.get_running_loop().run_in_executor(self._asking, serve.status)
            status = await asyncio.wait_for(asking, CONNECT_SECONDS)
            engines = status.applications[self._engines.app_name].deployments[self._engines.deployment_name]
        except (RayError, RayServeException, TimeoutError, KeyError):
            return False
        return bool(engines.replica_states.get(ReplicaState.RUNNING, 0))

    async def leave(self) -> None:
        os._exit(1)

    async def kill(self, replica: str) -> None:
        await asyncio.to_thread(_kill, replica)

    async def probe(self) -> list[str]:
        try:
            answers = await self._engines.broadcast("probe").results_async(
                timeout_s=PROBE_SECONDS, return_exceptions=True
            )
        except (RayServeException, TimeoutError):
            return [f"not every engine replica gave a token within {PROBE_SECONDS:.0f} s"]
        return [str(answer) for answer in answers if answer is not None] if answers else ["no engine replica is there"]

    async def trace(self) -> list[dict[str, Any]]:
        return await _ask(self._engines, "trace")

    async def why(self, request_id: str) -> dict[str, float] | None:
        return await _ask_why(self._engines, "why", request_id)


def _running(replicas: DeploymentHandle[Any]) -> set[str] | None:
    """The names of the replicas that Serve has told this process of; None if that cannot be known.

    Serve keeps the knowledge to itself, so it is looked up where Serve has it. Not found, all
    replicas are asked each time.
    """
    router: Any = getattr(replicas, "_router", None)
    try:
        return {replica.to_full_id_str() for replica in list(router._asyncio_router._request_router.curr_replicas)}
    except AttributeError:
        return None


def _kill(replica: str) -> None:
    with suppress(ValueError):  # it has gone
        ray.kill(ray.get_actor(replica, namespace=SERVE_NAMESPACE))


class _ServeCall:
    """A call through Serve, so that it routes, counts and cancels the request."""

    def __init__(self, response: DeploymentResponse[Any]) -> None:
        self._response = response

    async def result(self) -> Refusal | str:
        try:
            result: Refusal | str = await self._response
        except (RayError, RayServeException) as error:
            raise EngineLost(str(error).splitlines()[0]) from None
        return result

    def cancel(self) -> None:
        self._response.cancel()
