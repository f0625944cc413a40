"""One request's call to an engine replica, through Serve."""

from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentResponse

from cluster.replica.calls.engines import Refusal
from cluster.replica.calls.lost import EngineLost


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
