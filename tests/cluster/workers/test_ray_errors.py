"""What Ray raises, as one line of ours."""

import pytest
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from cluster.workers.ray_errors import cause_of, reason_of
from engine.errors import InvalidConfig, WorkerLost


def failed(cause: Exception) -> RayTaskError:
    return RayTaskError("take_seat", "a traceback\nof lines", cause)


def test_a_refused_configuration_is_the_callers() -> None:
    found = cause_of(3, failed(InvalidConfig("dtype=int3")))
    assert isinstance(found, InvalidConfig) and str(found) == "dtype=int3"


@pytest.mark.parametrize(
    ("error", "reason"),
    [(failed(ValueError("one\ntwo")), "ValueError: one"), (ActorDiedError(), None)],
)
def test_whatever_else_comes_is_a_lost_worker_in_a_line(error: RayError, reason: str | None) -> None:
    found = cause_of(3, error)
    assert isinstance(found, WorkerLost) and found.rank == 3
    assert "\n" not in reason_of(error) and reason_of(error) == (reason or found.reason)
