"""The store's two actors, as one tells the other: both in this process, called as Ray calls them.
Real processes: `test_store_actor`.
"""

import asyncio
from typing import Any

import pytest

from cluster.gateway.streams import store_actor
from cluster.gateway.streams.records.store_changes import Kept, StoreChanges
from cluster.gateway.streams.shard import Shard
from cluster.gateway.streams.store_actor import StoreActor

SHARD = Shard("app", 0, 1)
PLACE = (b"", "resp_1")


class Handle:
    """An actor's, as far as it is called; while it is away, calls fail."""

    def __init__(self, actor: StoreActor) -> None:
        self.actor = actor
        self.is_away = False
        self.called: list[str] = []

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any) -> Any:
            self.called.append(method)
            if self.is_away:
                raise ValueError("it is away")
            return await getattr(self.actor, method)(*arguments)

        return type("Method", (), {"remote": staticmethod(call)})


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """Numbers 0 and 1, on a node each."""
    handles: list[Handle] = []
    monkeypatch.setattr(store_actor, "start", lambda shard, number: handles[number])
    monkeypatch.setattr(store_actor, "_here", lambda: "a node")
    monkeypatch.setattr(store_actor, "_nodes_but", lambda here: [])
    monkeypatch.setattr(store_actor, "TEND_SECONDS", 0.01)
    handles += [Handle(StoreActor(SHARD, number)) for number in (0, 1)]
    return handles


def kept(record: bytes = b"x", place: tuple[bytes, str] = PLACE) -> StoreChanges:
    return StoreChanges(kept=[Kept(place, record, 60.0)])


async def until_known(handle: Handle, place: tuple[bytes, str] = PLACE) -> bytes:
    """To it alone."""
    async with asyncio.timeout(60):
        while (record := await handle.actor.look_for_response(place)) is None:
            await asyncio.sleep(0)
    return record


async def test_what_one_is_told_both_have_when_it_answers(actors: list[Handle]) -> None:
    one, other = actors
    await one.actor.wake()
    await one.actor.write(kept())
    assert await other.actor.look_for_response(PLACE) == b"x"
    await other.actor.wake()
    await other.actor.write(StoreChanges(forgotten=[PLACE]))
    assert await one.actor.look_for_response(PLACE) is None


async def test_one_that_was_away_gets_what_it_lacks_and_revives_nothing(actors: list[Handle]) -> None:
    one, other = actors
    await one.actor.wake()
    await one.actor.write(kept(place=(b"", "gone")))
    other.is_away, before = True, other.called.count("take")
    await one.actor.write(kept())
    await one.actor.write(StoreChanges(forgotten=[(b"", "gone")]))
    assert other.called.count("take") == before + 1, "one that does not answer is not waited for again"
    assert await one.actor.find_response((b"", "gone")) is None, "it need not be asked"
    assert await other.actor.look_for_response((b"", "gone")) == b"x"
    other.is_away = False
    assert await until_known(other) == b"x"
    assert await other.actor.find_response((b"", "gone")) is None
    assert await one.actor.look_for_response((b"", "gone")) is None


async def test_one_that_was_started_again_gets_all(actors: list[Handle]) -> None:
    one, other = actors
    await one.actor.wake()
    await one.actor.write(kept())
    other.actor = StoreActor(SHARD, 1)
    assert await other.actor.find_response(PLACE) == b"x", "the other one knows, if it does not yet"
    assert await until_known(other) == b"x"


async def test_what_only_one_that_does_not_answer_may_know_is_not_denied(actors: list[Handle]) -> None:
    one, other = actors
    await one.actor.wake()
    assert await one.actor.find_response(PLACE) is None and await one.actor.find_stream("s") is None
    other.is_away = True
    with pytest.raises(ValueError, match="it is away"):
        await one.actor.find_response(PLACE)
    with pytest.raises(ValueError, match="it is away"):
        await one.actor.find_stream("s")


async def test_a_first_one_need_not_wait_for_one_that_cannot_start(actors: list[Handle]) -> None:
    one, other = actors
    other.is_away = True
    await one.actor.wake()
    await one.actor.write(kept())
    assert await one.actor.find_response(PLACE) == b"x"
