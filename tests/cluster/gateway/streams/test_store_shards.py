"""Several shards as gateways call them: all actors in this process, called as Ray calls them. Real
processes: `test_store_actor`.
"""

import asyncio
from typing import Any

import pytest
from ray.exceptions import RayError

from cluster.actors import named
from cluster.actors.named import NAMESPACE
from cluster.api.errors import Unavailable
from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams import store_actor, store_calls
from cluster.gateway.streams.response_store import ResponseStoreClient
from cluster.gateway.streams.shard import Shard, number_of
from cluster.gateway.streams.store_actor import StoreActor
from cluster.gateway.streams.stream_store import StreamStoreClient
from tests.cluster.gateway.streams.test_twin import Handle

APP, OWNER = "app", b"me"
NAMES = [f"s{number}" for number in range(20)]


class Actors:
    """Those that Ray would have, by name."""

    def __init__(self) -> None:
        self.handles: dict[str, Handle] = {}

    def start(self, shard: Shard, number: int) -> Handle:
        name = shard.actor_name(number)
        if name not in self.handles:
            self.handles[name] = Handle(StoreActor(shard, number))
        return self.handles[name]

    def get(self, name: str, namespace: str) -> Handle:
        assert namespace == NAMESPACE
        if name not in self.handles:
            raise ValueError(name)
        return self.handles[name]

    def names(self, all_namespaces: bool) -> list[dict[str, str]]:
        assert all_namespaces
        return [{"name": name, "namespace": NAMESPACE} for name in self.handles]

    def of(self, number: int, count: int) -> StoreActor:
        return self.get(Shard(APP, number, count).actor_name(0), NAMESPACE).actor


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Actors:
    made = Actors()
    monkeypatch.setattr(store_actor, "start", made.start)
    monkeypatch.setattr(store_actor, "_here", lambda: "a node")
    monkeypatch.setattr(store_actor, "_nodes_but", lambda here: [])
    monkeypatch.setattr(store_calls, "start", made.start)
    monkeypatch.setattr(named.ray, "get_actor", made.get)
    monkeypatch.setattr(named, "list_named_actors", made.names)
    return made


def record(created: int = 0) -> StreamRecord:
    return StreamRecord(b"who", created, 7)


async def test_each_shard_has_what_its_ids_say_and_nothing_else(actors: Actors) -> None:
    streams, responses = StreamStoreClient(APP, 3), ResponseStoreClient(APP, 3, 60.0)
    await asyncio.gather(*(streams.open(name, record(number)) for number, name in enumerate(NAMES)))
    assert all(await asyncio.gather(*(responses.keep(OWNER, name, name.encode()) for name in NAMES)))
    for number in range(3):
        here = [name for name in NAMES if number_of(name, 3) == number]
        known = [name for name in NAMES if await actors.of(number, 3).look_for_stream(name)]
        kept = [name for name in NAMES if await actors.of(number, 3).look_for_response((OWNER, name))]
        assert known == kept == here and here
    assert [await streams.find(name) for name in NAMES] == [record(number) for number in range(len(NAMES))]
    assert [await responses.find(OWNER, name) for name in NAMES] == [name.encode() for name in NAMES]


async def test_a_shard_that_does_not_answer_holds_up_no_other(actors: Actors) -> None:
    streams = StreamStoreClient(APP, 2)
    slow, fast = (next(name for name in NAMES if number_of(name, 2) == number) for number in (0, 1))
    await asyncio.gather(streams.open(slow, record()), streams.open(fast, record()))
    answers = asyncio.Event()
    take = actors.of(0, 2).take

    async def take_late(changes: Any) -> None:
        await answers.wait()
        await take(changes)

    actors.of(0, 2).take = take_late  # type: ignore[method-assign]
    others = [name for name in NAMES if name not in (slow, fast)]
    opening = {name: asyncio.create_task(streams.open(name, record())) for name in others}
    await asyncio.gather(*(task for name, task in opening.items() if number_of(name, 2) == 1))
    assert not any(task.done() for name, task in opening.items() if number_of(name, 2) == 0)
    answers.set()
    await asyncio.gather(*opening.values())
    assert all([await streams.find(name) is not None for name in others])


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 2)])
async def test_gateways_that_differ_in_the_number_find_all_and_forget_all(
    actors: Actors, before: int, after: int
) -> None:
    old, new = ResponseStoreClient(APP, before, 60.0), ResponseStoreClient(APP, after, 60.0)
    for number, name in enumerate(NAMES):
        assert await (old, new)[number % 2].keep(OWNER, name, name.encode())
    for gateway in (old, new):
        assert [await gateway.find(OWNER, name) for name in NAMES] == [name.encode() for name in NAMES]
        assert await gateway.find(b"another", NAMES[0]) is None
    for number, name in enumerate(NAMES):
        assert await (old, new)[number // 2 % 2].forget(OWNER, name)
    for gateway in (old, new):
        assert [await gateway.find(OWNER, name) for name in NAMES] == [None] * len(NAMES)
        assert not await gateway.forget(OWNER, NAMES[0])


async def test_a_stream_goes_on_where_the_gateway_stores_that_resumes_it(actors: Actors) -> None:
    old, new = StreamStoreClient(APP, 1), StreamStoreClient(APP, 4)
    await old.open("s0", StreamRecord(b"who", 5, 7, None, 3, 40, [11, 12], [0, 1]))
    assert await new.find("s0") == await old.find("s0") is not None
    new.told(Told("s0", 2, [13], 2, 3, 40))
    here = actors.of(number_of("s0", 4), 4)
    async with asyncio.timeout(60):
        while (known := await here.look_for_stream("s0")) is None or len(known.token_ids) < 3:
            await asyncio.sleep(0)
    assert known.token_ids == [11, 12, 13]
    del actors.handles[Shard(APP, 0, 1).actor_name(0)], actors.handles[Shard(APP, 0, 1).actor_name(1)]
    assert await StreamStoreClient(APP, 4).find("s0") == known


async def test_what_shards_that_are_not_known_may_have_is_not_denied(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = ResponseStoreClient(APP, 2, 60.0)
    assert await responses.keep(OWNER, "one", b"x")

    def names(all_namespaces: bool) -> Any:
        raise RayError("it does not answer")

    monkeypatch.setattr(named, "list_named_actors", names)
    assert await responses.find(OWNER, "one") == b"x"
    with pytest.raises(Unavailable):
        await responses.find(OWNER, "two")


async def test_who_only_looks_keeps_no_actor_there(actors: Actors) -> None:
    old, new = StreamStoreClient(APP, 1), StreamStoreClient(APP, 2)
    await asyncio.gather(old.open("s0", record()), new.open("s1", record()))
    heard: list[float] = []
    actors.of(0, 1)._hear = lambda seconds_ago=0.0: heard.append(seconds_ago)  # type: ignore[method-assign]
    assert await new.find("s0") is not None and await new.find("s2") is None
    assert 0.0 not in heard, "what the other actor has heard is told as some time ago"
    await old.open("s3", record())
    assert 0.0 in heard
