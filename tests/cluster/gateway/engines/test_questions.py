"""Questions to all replicas of a deployment, some of which do not answer."""

import asyncio
import pickle
from typing import Any

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import RayServeException

from cluster.api.errors import Unavailable
from cluster.gateway.engines import questions
from cluster.gateway.engines.questions import ask_all, ask_one, ask_those_that_answer, probe_all
from engine.errors import in_a_line

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

    async def _fetch_replica_results_async(self) -> list["Result"]:
        if self._fails is not None:
            raise self._fails
        return [Result(answer) for answer in self._answers]


class Result:
    """Of one replica's call; without an end if the answer is an event."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def get_async(self) -> Any:
        if isinstance(self._answer, asyncio.Event):
            try:
                await asyncio.Event().wait()
            finally:
                self._answer.set()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


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


async def test_one_that_is_late_takes_no_other_answer_along() -> None:
    is_left = asyncio.Event()
    assert await ask_those_that_answer(handle(1, is_left, 2), "why", seconds=0.1) == [1, 2]
    await asyncio.wait_for(is_left.wait(), 10)


class Replica:
    """An actor of Serve's, which has or has not an answer."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.handle_request = self

    async def _call(self, metadata: bytes) -> Any:
        assert pickle.loads(metadata).call_method == "view"
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def remote(self, metadata: bytes) -> Any:
        return self._call(metadata)


async def test_one_replica_is_asked_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"well": Replica(1), "died": Replica(DIED)}

    def find(name: str) -> Replica:
        if name not in there:
            raise ValueError(f"there is no {name}")
        return there[name]

    monkeypatch.setattr(questions, "find_replica", find)
    assert [await ask_one(name, "view") for name in ("well", "died", "gone")] == [1, None, None]


async def test_what_a_probe_finds() -> None:
    assert await probe_all(handle(None, None)) == []
    assert await probe_all(handle(None, "no token came")) == ["no token came"]
    assert await probe_all(handle()) == ["no engine replica is there"]
    assert await probe_all(NO_ANSWERS[0]) == ["not every engine replica gave a token within 25 s"]


async def test_a_probe_tells_a_line_of_a_replica_that_is_lost_or_fails() -> None:
    lost = ActorDiedError(ActorDiedErrorContext(error_message="it ended", pid=7, actor_id=bytes(16)))
    assert "\n" in str(lost)
    failed = RayTaskError("probe", "Traceback:\n  in a file", ValueError("no"))
    told = await probe_all(handle(None, lost, failed))
    assert told == [f"a replica has failed: {told_of}" for told_of in (in_a_line(lost), "ValueError: no")]
