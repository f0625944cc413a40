"""Questions that any replica can answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cluster.api.errors import Unavailable
from cluster.gateway.engines.any_replica import MAX_AT_ONCE, AnyReplica
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal
from engine.errors import InvalidRequest, Overloaded
from tests.cluster.gateway.test_gateway import Replicas


class Asked(Replicas):
    """Each question is answered by the next of the answers."""

    def __init__(self, *answers: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def ask_any(self, question: str, *args: Any) -> Any:
        self.asked.append((question, *args))
        return await self.answers.pop(0)()


async def says(what: Any) -> Any:
    return what


async def is_lost() -> Any:
    raise EngineLost("gone")


async def test_another_is_asked_for_one_that_is_lost() -> None:
    engines = Asked(is_lost, lambda: says("text"))
    assert await AnyReplica(engines, 60).ask("detokenize", [1]) == "text"
    assert engines.asked == [("detokenize", [1])] * 2


async def test_a_refusal_is_an_error() -> None:
    refusal = Refusal.of(InvalidRequest("too long", param="prompt"))
    with pytest.raises(InvalidRequest, match="too long"):
        await AnyReplica(Asked(lambda: says(refusal)), 60).ask("tokenize")


async def test_nobody_is_waited_for_beyond_patience() -> None:
    with pytest.raises(Unavailable):
        await AnyReplica(Asked(asyncio.Event().wait), 0.01).ask("tokenize")


async def test_questions_at_once_are_bounded() -> None:
    answered = asyncio.Event()
    asking = AnyReplica(Asked(*[answered.wait] * MAX_AT_ONCE, lambda: says(1)), 60)
    open_ones = [asyncio.create_task(asking.ask("tokenize")) for _ in range(MAX_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await asking.ask("tokenize")
    answered.set()
    await asyncio.gather(*open_ones)
    assert await asking.ask("tokenize") == 1
