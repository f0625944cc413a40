"""Questions to the replicas of a deployment."""

from typing import Any

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from cluster.api.errors import Unavailable
from cluster.replica.refusals.lost import EngineLost
from cluster.workers.ray_errors import reason_of
from engine.request import Adapter

ANSWER_SECONDS = 10.0
HURRIED_SECONDS = 1.0
PROBE_SECONDS = 20.0  # for a token; requests that came before are served before
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


async def ask_those_that_answer(
    replicas: DeploymentHandle[Any], method: str, *args: Any, seconds: float = HURRIED_SECONDS
) -> list[Any]:
    """The answers that arrive within `seconds`, without those of replicas that fail; an empty list
    if there is no replica, or if one does not answer in time.
    """
    try:
        answers = await replicas.broadcast(method, *args).results_async(timeout_s=seconds, return_exceptions=True)
    except (RayServeException, TimeoutError):
        return []
    return [answer for answer in answers if not isinstance(answer, Exception)]


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
    return [str(answer) for answer in answers if answer is not None] if answers else ["no engine replica is there"]
