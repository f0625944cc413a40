"""The two deployments of the Serve application: the gateway, which clients talk to, and the engine, which owns the workers."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from cluster import handle
from cluster.api.app import build
from cluster.delta_channel import DeltaClient, GatewayAddress
from cluster.executor import RayExecutor
from cluster.gateway import Admission, Gateway, Refusal
from cluster.journal import EngineLost
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import EngineDead, SquadronError
from engine.executor import Executor
from engine.outputs import RequestOutput
from engine.worker.local_executor import LocalExecutor

HEALTH_SECONDS = 3.0
MAX_ONGOING_REQUESTS = 100_000  # admission is the engine's: Serve's own refusals are not what clients expect


def make_executor(config: EngineConfig) -> Executor:
    """The executor that the configuration asks for."""
    return LocalExecutor(config) if config.runs_in_process else RayExecutor(config)


class EngineDeployment:
    """One engine and its workers, which live in the replica's placement group and die with it."""

    async def __init__(self, config: EngineConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, _Running] = {}
        # Tokenizing would hold up the deltas. One thread, so that an abort stays behind its add.
        self._admissions = ThreadPoolExecutor(1, thread_name_prefix="admissions")
        self._engine = AsyncEngine(config, make_executor(config), on_outputs=self._publish)
        self._client = DeltaClient(self._on_gateway_lost)
        await asyncio.to_thread(self._engine.start)

    async def generate(self, admission: Admission) -> Refusal | str:
        """Take a request and stay until its last delta has been sent; the name of the connection that it went over."""
        try:
            connection = await self._client.connect(admission.gateway)
        except OSError as error:
            return Refusal("engine_dead", f"it cannot reach the gateway: {error}")
        running = self._running[admission.request_id] = _Running(admission.gateway)
        try:
            await self._loop.run_in_executor(self._admissions, self._add, admission)
            await running.done
        except SquadronError as error:
            return Refusal.of(error)
        finally:
            del self._running[admission.request_id]
            if not running.is_finished:
                self._admissions.submit(self._engine.abort, admission.request_id)
        return connection

    async def stats(self) -> dict[str, Any]:
        """The engine's `EngineStats`."""
        return asdict(self._engine.stats())

    async def trace(self) -> dict[str, Any]:
        """The last steps as a Chrome trace."""
        return await self._engine.trace()

    async def why(self, request_id: str) -> dict[str, float] | None:
        """Seconds by phase of a request; None if this replica does not know it."""
        try:
            return {phase: seconds for phase, seconds in (await self._engine.why(request_id)).items()}
        except KeyError:
            return None

    async def model_info(self) -> dict[str, Any]:
        """What the HTTP API needs to know of the model."""
        model = self._engine.model_config
        return {
            "max_model_len": self._engine.max_model_len,
            "vocab_size": model.vocab_size,
            "default_sampling": model.default_sampling,
        }

    def check_health(self) -> None:
        """Raises EngineDead; Serve then replaces the replica."""
        self._engine.check_health()

    async def __del__(self) -> None:
        await asyncio.to_thread(self._engine.shutdown)
        for running in self._running.values():
            running.finish(EngineDead("the engine is shut down"))
        self._admissions.shutdown()
        await self._client.close()

    def _add(self, admission: Admission) -> None:
        self._engine.add_request(
            admission.request_id,
            admission.prompt,
            admission.params,
            output_ids=admission.output_ids,
            attempt=admission.attempt,
            priority=admission.priority,
            cache_salt=admission.cache_salt,
        )

    def _publish(self, deltas: list[RequestOutput]) -> None:
        """Called in the engine's thread, once a step."""
        self._loop.call_soon_threadsafe(self._send, deltas)

    def _send(self, deltas: list[RequestOutput]) -> None:
        by_gateway: dict[GatewayAddress, list[RequestOutput]] = {}
        is_alive = self._is_alive()
        for delta in deltas:
            running = self._running.get(delta.request_id)
            if running is None:
                continue
            if delta.error is not None and not is_alive:
                running.finish(EngineDead(delta.error))  # not for the client to hear: another replica may go on
                continue
            by_gateway.setdefault(running.gateway, []).append(running.trim(delta))
            if delta.finished:
                running.finish()
        for gateway, news in by_gateway.items():
            self._client.send(gateway, news)

    def _is_alive(self) -> bool:
        try:
            self._engine.check_health()
        except EngineDead:
            return False
        return True

    def _on_gateway_lost(self, gateway: GatewayAddress) -> None:
        for running in self._running.values():
            if running.gateway == gateway:
                running.fail(EngineDead("the connection to the gateway ended"))


class _Running:
    """A request on this replica, as far as its deltas go."""

    def __init__(self, gateway: GatewayAddress) -> None:
        self.gateway = gateway
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_finished = False  # the engine has forgotten it
        self._has_prompt = False

    def finish(self, error: EngineDead | None = None) -> None:
        self.is_finished = True
        if error is not None:
            self.fail(error)
        elif not self.done.done():
            self.done.set_result(None)

    def fail(self, error: EngineDead) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def trim(self, delta: RequestOutput) -> RequestOutput:
        """The delta without what the gateway has (the prompt, once sent) or does not want (the times, which still change)."""
        if self._has_prompt:
            return replace(delta, prompt_token_ids=[], prompt=None, metrics=None)
        self._has_prompt = True
        return replace(delta, metrics=None)


class GatewayDeployment:
    """The ingress: the HTTP API, and the methods that other Ray jobs call (see `cluster.handle`)."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, engines: DeploymentHandle[Any], model_name: str, max_attempts: int, api_keys: tuple[str, ...]
    ) -> None:
        self._gateway = Gateway(_ServeEngines(engines), max_attempts=max_attempts)
        await self._gateway.start(ray.util.get_node_ip_address())
        self._model_name = model_name
        self._api_keys = api_keys
        self._model = await engines.model_info.remote()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build(self._gateway, model_name=self._model_name, api_keys=self._api_keys, **self._model)

    async def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        return await handle.generate(self._gateway, request)

    async def stream(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(handle.stream(self._gateway, request)) as answers:
            async for answer in answers:
                yield answer

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        return await handle.chat(self._gateway, request)

    async def abort(self, request_id: str) -> None:
        """End the request on whichever gateway it is."""
        me = serve.get_replica_context()
        gateways = serve.get_deployment_handle(me.deployment, me.app_name)
        await gateways.broadcast("abort_here", request_id).results_async()

    async def abort_here(self, request_id: str) -> None:
        self._gateway.abort(request_id)


class _ServeEngines:
    """The engine replicas behind a Serve handle."""

    def __init__(self, engines: DeploymentHandle[Any]) -> None:
        self._engines = engines

    def generate(self, admission: Admission) -> "_ServeCall":
        return _ServeCall(self._engines.generate.remote(admission))

    async def health(self) -> list[str]:
        try:
            answers = await self._engines.broadcast("stats").results_async(
                timeout_s=HEALTH_SECONDS, return_exceptions=True
            )
        except (RayServeException, TimeoutError) as error:
            return [f"no engine replica answers: {error}"]
        if any(isinstance(answer, dict) for answer in answers):
            return []
        return ["every engine replica is down"]

    async def trace(self) -> list[dict[str, Any]]:
        traces: list[dict[str, Any]] = await self._engines.broadcast("trace").results_async(timeout_s=HEALTH_SECONDS)
        return traces

    async def why(self, request_id: str) -> dict[str, float] | None:
        answers = await self._engines.broadcast("why", request_id).results_async(timeout_s=HEALTH_SECONDS)
        return next((answer for answer in answers if answer is not None), None)


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
