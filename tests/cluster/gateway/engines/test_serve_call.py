"""A request's call through Serve, of which nothing but its end is Serve's."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError

from cluster.gateway.engines.serve_call import ServeCall
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal


class Response:
    """Serve's, with this result or exception."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self.is_cancelled = False

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def cancel(self) -> None:
        self.is_cancelled = True


def call(response: Response) -> ServeCall:
    return ServeCall(response)  # type: ignore[arg-type]


@pytest.mark.parametrize("result", ["the connection", Refusal("moved", "it is told to stop")])
async def test_an_answer_is_the_replicas(result: Refusal | str) -> None:
    assert await call(Response(result)).result() == result


@pytest.mark.parametrize("error", [RayError("the replica\ndied"), BackPressureError(1, 2)])
async def test_what_fails_in_ray_or_serve_is_a_lost_replica(error: Exception) -> None:
    with pytest.raises(EngineLost) as caught:
        await call(Response(error)).result()
    assert caught.value.reason == str(error).splitlines()[0]


def test_a_call_that_nobody_wants_is_serves_to_cancel() -> None:
    response = Response("")
    call(response).cancel()
    assert response.is_cancelled
