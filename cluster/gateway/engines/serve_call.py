"""One request's call to an engine replica: through Serve, or directly if Serve has dropped it."""

import asyncio
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentResponse

from cluster.replica.calls.direct import call_replica, find_replica
from cluster.replica.calls.engines import Refusal
from cluster.replica.calls.lost import EngineLost
from cluster.replica.delta_channel.messages import GatewayAddress
from engine.request import Request


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


class LeavingCall:
    """A call to a replica that leaves and serves until the next one is ready."""

    def __init__(self, replica: str, request: Request, gateway: GatewayAddress) -> None:
        """`replica`: its name."""
        self._replica = replica
        self._request = request
        self._gateway = gateway
        self._call: ObjectRef[Any] | None = None  # once the replica is found

    async def result(self) -> Refusal | str:
        try:
            replica = await asyncio.to_thread(find_replica, self._replica)
            self._call = call_replica(replica, "generate", self._request, self._gateway)
            result: Refusal | str = await self._call
        except (RayError, ValueError) as error:
            raise EngineLost(str(error).splitlines()[0]) from None
        return result

    def cancel(self) -> None:
        if self._call is not None:
            ray.cancel(self._call)
