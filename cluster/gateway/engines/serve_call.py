"""One request's call to an engine replica through Serve."""

from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentResponse

from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal


class ServeCall:
    """See `EngineCall`. Serve keeps it until there is a replica."""

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
