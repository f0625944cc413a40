"""Questions to all replicas of a deployment, some of which do not answer."""

from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import RayServeException

from cluster.api.errors import Unavailable
from cluster.gateway.engines.questions import ask_all, ask_those_that_answer, probe_all

DIED = ActorDiedError()


class Handle:
    """Serve's, of replicas that answer so; or Serve, or a replica, lets all wait."""

    def __init__(self, *answers: Any, fails: Exception | None = None) -> None:
        self._answers = answers
        self._fails = fails

    def broadcast(self, method: str, *args: Any) -> "Handle":
        self.asked = (method, *args)
        return self

    async def results_async(self, *, timeout_s: float, return_exceptions: bool) -> list[Any]:
        assert timeout_s > 0 and return_exceptions
        if self._fails is not None:
            raise self._fails
        return list(self._answers)


def handle(*answers: Any, fails: Exception | None = None) -> Any:
    return Handle(*answers, fails=fails)


NO_ANSWERS = [handle(fails=TimeoutError()), handle(fails=RayServeException("there are none"))]


async def test_the_dead_are_left_out() -> None:
    asked = handle(1, DIED, None)
    assert await ask_all(asked, "why", "r") == [1, None]
    assert asked.asked == ("why", "r")
    assert await ask_those_that_answer(handle(1, DIED, ValueError("no")), "why") == [1]


@pytest.mark.parametrize("silent", [*NO_ANSWERS, handle(1, ValueError("no"))])
async def test_an_answer_that_lacks_is_an_error_or_not(silent: Any) -> None:
    with pytest.raises(Unavailable, match=r"Not every replica answered within 10 s|A replica could not answer: .*no"):
        await ask_all(silent, "why")


@pytest.mark.parametrize("silent", NO_ANSWERS)
async def test_who_is_in_a_hurry_goes_without(silent: Any) -> None:
    assert await ask_those_that_answer(silent, "why", seconds=0.1) == []


async def test_what_a_probe_finds() -> None:
    assert await probe_all(handle(None, None)) == []
    assert await probe_all(handle(None, "no token came")) == ["no token came"]
    assert await probe_all(handle()) == ["no engine replica is there"]
    assert await probe_all(NO_ANSWERS[0]) == ["not every engine replica gave a token within 20 s"]
