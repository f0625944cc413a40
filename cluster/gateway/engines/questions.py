"""Questions to the replicas of a deployment."""

import asyncio
import functools
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cluster.api.errors import Unavailable
from cluster.replica.calls.direct import call_replica, find_replica
from cluster.replica.refusals.lost import EngineLost
from cluster.workers.ray_errors import reason_of
from engine.request import Adapter

ANSWER_SECONDS = 10.0
HURRIED_SECONDS = 1.0
PROBE_SECONDS = 25.0  # longer than a replica tries
RETRY_AFTER = 5.0  # seconds


async def ask_all(replicas: DeploymentHandle[Any], method: str, *args: Any) -> list[Any]:
    """Each replica's answer, without those of replicas that have died; raises Unavailable if a
    living one does not answer.
    """
    try:
        answers = await replicas.broadcast(method, *args).results_async(
            timeout_s=ANSWER_SECONDS, return_exceptions=True
        )
    except (RayServeException, TimeoutError):
        message = f"Not every replica answered within {ANSWER_SECONDS:.0f} s"
        raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER) from None
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, RayActorError):
            message = f"A replica could not answer: {reason_of(answer)}"
            raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER)
    return [answer for answer in answers if not isinstance(answer, Exception)]


async def change_all(replicas: DeploymentHandle[Any], method: str, *args: Any) -> list[Any]:
    """Each replica's answer, however long it takes; a line of text from one that has none. Empty if
    there is no replica.
    """
    try:
        answers = await replicas.broadcast(method, *args).results_async(return_exceptions=True)
    except RayServeException:
        return []
    return [f"a replica was lost: {reason_of(one)}" if isinstance(one, Exception) else one for one in answers]


async def ask_any(replicas: DeploymentHandle[Any], method: str, *args: Any) -> Any:
    """One replica's answer, once there is a replica; raises EngineLost."""
    response = getattr(replicas, method).remote(*args)
    try:
        return await response
    except (RayError, RayServeException) as error:
        raise EngineLost(str(error).splitlines()[0]) from None
    finally:
        response.cancel()


async def ask_one(replica: str, method: str) -> Any:
    """What the replica of that name answers; None if it is gone, or fails."""
    try:
        return await call_replica(await asyncio.to_thread(_find, replica), method)
    except (ValueError, RayError):
        return None


@functools.lru_cache(maxsize=64)  # Ray would be asked each time, and may not answer
def _find(replica: str) -> ActorHandle:
    """Raises ValueError."""
    return find_replica(replica)


async def ask_those_that_answer(
    replicas: DeploymentHandle[Any], method: str, *args: Any, seconds: float = HURRIED_SECONDS
) -> list[Any]:
    """The answers that arrive within `seconds`, without those of replicas that fail."""
    calls: list[asyncio.Future[Any]] = []
    try:
        async with asyncio.timeout(seconds):
            # What `results_async` waits for: it gives all answers, or none if one is late.
            results = await replicas.broadcast(method, *args)._fetch_replica_results_async()
            calls = [asyncio.ensure_future(result.get_async()) for result in results]
            await asyncio.gather(*calls, return_exceptions=True)
    except (RayServeException, TimeoutError):
        pass
    return [call.result() for call in calls if not call.cancelled() and call.exception() is None]


async def probe_all(engines: DeploymentHandle[Any], adapter: Adapter | None = None) -> list[str]:
    """Have every engine replica generate a token, with or without an adapter; returns one line per
    failure.
    """
    try:
        answers = await engines.broadcast("probe", adapter).results_async(
            timeout_s=PROBE_SECONDS, return_exceptions=True
        )
    except (RayServeException, TimeoutError):
        return [f"not every engine replica gave a token within {PROBE_SECONDS:.0f} s"]
    if not answers:
        return ["no engine replica is there"]
    return [
        f"a replica has failed: {reason_of(answer)}" if isinstance(answer, Exception) else answer
        for answer in answers
        if answer is not None
    ]
