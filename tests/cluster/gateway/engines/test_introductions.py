"""When a replica that is not connected is told to connect."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from cluster.gateway.engines import reach
from cluster.gateway.engines.reach import EACH, LONGEST_PAUSE, Introductions
from cluster.replica.delta_channel.messages import GatewayAddress

HERE = GatewayAddress("127.0.0.1", 1, b"token")


class Replicas:
    """Those that are told to connect: some answer, some never do, and some are not there."""

    def __init__(self, *, frozen: str | None = None, lost: str | None = None) -> None:
        self.told: list[str] = []
        self._frozen, self._lost = frozen, lost

    async def call(self, name: str, gateway: GatewayAddress) -> None:
        assert gateway == HERE
        self.told.append(name)
        if name == self._frozen:
            await asyncio.Event().wait()
        if name == self._lost:
            raise ValueError("it is not there")


@pytest.fixture
def introducing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Replicas], Introductions]:
    """To these replicas."""
    monkeypatch.setattr(reach, "CONNECT_SECONDS", 0.01)

    def make(replicas: Replicas) -> Introductions:
        monkeypatch.setattr(reach, "connect_replica", replicas.call)
        return Introductions(lambda gateway: replicas.call(EACH, gateway))

    return make


async def test_pauses_grow_up_to_the_longest(introducing) -> None:
    replicas = Replicas()
    turns, introductions = [], introducing(replicas)
    for turn in range(200):
        num_told = len(replicas.told)
        assert await introductions.turn(HERE, {"a"}, is_reached=True)
        await asyncio.sleep(0)  # for the call
        turns += [turn] * (len(replicas.told) - num_told)
    pauses = [later - earlier for earlier, later in pairwise(turns)]
    assert pauses == [2, 4, 8, 16, 32, 33, 33, 33, 33]
    assert max(pauses) == LONGEST_PAUSE + 1


async def test_one_that_was_connected_meanwhile_is_called_at_once(introducing) -> None:
    replicas = Replicas()
    introductions = introducing(replicas)
    for missing in ({"a"}, {"a"}, set(), {"a"}):
        await introductions.turn(HERE, missing, is_reached=True)
        await asyncio.sleep(0)
    assert replicas.told == ["a", "a"]


async def test_while_none_is_reached_all_are_called_in_each_turn(introducing) -> None:
    replicas = Replicas(lost="b")
    introductions = introducing(replicas)
    for _ in range(3):
        assert await introductions.turn(HERE, {"a", "b"}, is_reached=False)
    assert replicas.told == ["a", "b"] * 3
    assert await introductions.turn(HERE, {EACH}, is_reached=False)
    assert replicas.told[-1] == EACH


async def test_a_replica_is_reached_if_it_answers(introducing) -> None:
    replicas = Replicas(frozen="frozen", lost="lost")
    introductions = introducing(replicas)
    assert not await introductions.turn(HERE, set(), is_reached=False)
    for _ in range(3):
        assert not await introductions.turn(HERE, {"frozen", "lost"}, is_reached=False)
    assert await introductions.turn(HERE, {"frozen", "lost", "a"}, is_reached=False)
    assert replicas.told.count("frozen") == 1, "whose call is still open"
