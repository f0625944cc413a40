"""The engine replicas behind a Serve handle, and what Serve knows of them."""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve._private.common import ReplicaState
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponse
from ray.serve.schema import DeploymentStatus, DeploymentStatusOverview

from cluster.gateway.engines.questions import ask_all
from cluster.gateway.engines.reach import BLIND_SECONDS, INTRODUCTION_SECONDS
from cluster.replica.calls.engines import Refusal
from cluster.replica.calls.lost import EngineLost
from cluster.replica.delta_channel.messages import GatewayAddress
from engine.request import Request

logger = logging.getLogger("squadron.gateway")

SERVE_NAMESPACE = "serve"  # where Serve names its actors
CONNECT_SECONDS = 3.0  # for every replica to connect to this gateway
PROBE_SECONDS = 20.0  # for a token; requests that came before are served before


class ServeEngines:
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

    def generate(self, request: Request, gateway: GatewayAddress) -> "ServeCall":
        return ServeCall(self._engines.generate.remote(request, gateway))

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        running = running_replicas(self._engines)
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
        status = await self._status()
        return status is not None and bool(status.replica_states.get(ReplicaState.RUNNING, 0))

    async def num_settled(self) -> int | None:
        status = await self._status()
        if status is None or status.status != DeploymentStatus.HEALTHY:
            return None
        num_running: int = status.replica_states.get(ReplicaState.RUNNING, 0)
        return num_running if sum(status.replica_states.values()) == num_running else None

    async def _status(self) -> DeploymentStatusOverview | None:
        """None if Serve's controller does not answer."""
        try:
            asking = asyncio.get_running_loop().run_in_executor(self._asking, serve.status)
            status = await asyncio.wait_for(asking, CONNECT_SECONDS)
            return status.applications[self._engines.app_name].deployments[self._engines.deployment_name]
        except (RayError, RayServeException, TimeoutError, KeyError):
            return None

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

    async def ask(self, question: str, *args: Any) -> list[Any]:
        return await ask_all(self._engines, question, *args)


def running_replicas(replicas: DeploymentHandle[Any]) -> set[str] | None:
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


class ServeCall:
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
