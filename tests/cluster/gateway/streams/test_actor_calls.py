"""Calls to either of two actors, in this process, called as Ray calls them."""

import asyncio
import threading
from typing import Any

import pytest

from cluster.gateway.streams import store_calls
from cluster.gateway.streams.actor_calls import ActorCalls
from cluster.gateway.streams.records.store_changes import StoreChanges
from cluster.gateway.streams.shard import Shard
from cluster.gateway.streams.store_calls import StoreCalls


class Handle:
    """An actor's; while it is away, calls fail once `told` is set."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_away = False
        self.told = asyncio.Event()

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any) -> int:
            if self.is_away or method == "wake":
                await self.told.wait()
            if self.is_away:
                raise ValueError("it is away")
            return self.number

        return type("Method", (), {"remote": staticmethod(call)})


@pytest.fixture
def handles() -> list[Handle]:
    return [Handle(0), Handle(1)]


async def test_calls_that_fail_at_the_same_time_go_on_to_the_same_other_one(handles: list[Handle]) -> None:
    def find(failed: int | None) -> tuple[int, Any]:
        number = 0 if failed is None else 1 - failed
        return number, handles[number]

    calls = ActorCalls(find)
    assert await calls.ask("look") == 0
    handles[0].is_away = True
    both = [asyncio.create_task(calls.ask("look")) for _ in range(2)]
    await asyncio.sleep(0)
    handles[0].told.set()
    assert [type(error) for error in await asyncio.gather(*both, return_exceptions=True)] == [ValueError] * 2
    assert [await calls.ask("look") for _ in range(2)] == [1, 1]


async def test_a_search_that_hangs_is_given_up() -> None:
    goes_on = threading.Event()

    def find(failed: int | None) -> tuple[int, Any]:
        goes_on.wait()
        return 0, Handle(0)

    try:
        with pytest.raises(TimeoutError):
            await ActorCalls(find).ask("look", seconds=0.05)
    finally:
        goes_on.set()


async def test_a_caller_that_leaves_while_the_actors_start_takes_nobody_along(
    handles: list[Handle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_calls, "find_actor", lambda name: handles[int(name[-1])])
    calls = StoreCalls(Shard("app", 0, 1))
    calls.wake()
    leaving, staying = (asyncio.create_task(calls.write(StoreChanges())) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    handles[0].told.set()
    await staying
    await calls.write(StoreChanges())
