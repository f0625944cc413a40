"""Turns Ray's exceptions for a worker's failed call into our own."""

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
    """Why a call to a rank's actor failed."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, InvalidConfig):
        return InvalidConfig(str(error.cause))
    return WorkerLost(rank, reason_of(error))


def reason_of(error: Exception) -> str:
    """One line for what Ray or a call to it raised."""
    if isinstance(error, RayTaskError):
        return in_a_line(error.cause)
    if isinstance(error, RayActorError) and error.actor_init_failed:
        # The message is a traceback; the exception is its last line.
        return str(error).strip().splitlines()[-1]
    return in_a_line(error)
