"""What Ray says of a worker's failed call, as one of our own errors."""

from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from engine.errors import InvalidConfig, SquadronError, WorkerLost, in_a_line


def result_of(rank: int, call: Any) -> Any:
    """The result of a rank's call; raises InvalidConfig or WorkerLost for whatever the call
    raised.
    """
    try:
        return ray.get(call)
    except RayError as error:
        raise cause_of(rank, error) from None


def cause_of(rank: int, error: RayError) -> SquadronError:
    """What a call to a rank's actor failed of."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, InvalidConfig):
        return InvalidConfig(str(error.cause))
    return WorkerLost(rank, reason_of(error))


def reason_of(error: Exception) -> str:
    """In one line, what Ray or a call to it raised."""
    if isinstance(error, RayTaskError):
        return in_a_line(error.cause)
    if isinstance(error, RayActorError) and error.actor_init_failed:
        # A traceback follows, and what was raised is its last line.
        return str(error).strip().splitlines()[-1]
    return in_a_line(error)
