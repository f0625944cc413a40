"""The store, which outlives every gateway. It holds what gateways need of each other: streams that
clients may resume, and responses that later ones may continue.

Each Serve application has its own, in one shard or several (`shard`). Each shard is two actors that
hold the same, on two nodes if there are as many, so that nothing is lost with either. A gateway
writes to one of them, whichever answers, and that one passes it on to the other before it answers.
It also has the other one started again if it is gone, and gives it all that it lacks (`Twin`).
"""

import asyncio
import secrets
import time
from typing import Any

import ray

from cluster.actors.named import start_actor
from cluster.api.responses.resuming.streams import StreamRecord
from cluster.gateway.streams.actor_calls import ActorCalls
from cluster.gateway.streams.records.store_changes import Place, StoreChanges
from cluster.gateway.streams.records.store_records import StoreRecords
from cluster.gateway.streams.shard import Shard
from cluster.gateway.streams.twin import Twin

IDLE_SECONDS = 600.0  # without a word from any gateway, after which an actor ends that stores nothing
TEND_SECONDS = 2.0
MAX_CONCURRENCY = 4096  # calls: each waits for one of the other actor, which needs a place there


class StoreActor:
    """Number 0 or 1 of its shard. Exits when no gateway has written for long and nothing is stored:
    the gateways are gone, or store elsewhere.
    """

    def __init__(self, shard: Shard, number: int) -> None:
        self._number = number
        self._life = secrets.token_hex(8)
        self._records = StoreRecords()
        self._twin = Twin(ActorCalls(lambda _: (1 - number, start(shard, 1 - number))))
        self._heard = time.monotonic()
        self._tending: asyncio.Task[None] | None = None

    async def write(self, changes: StoreChanges) -> None:
        """Store them, here and there; none at all only says that the gateway still exists."""
        self._hear()
        await self.take(changes)
        await self._twin.pass_on(changes)

    async def find_stream(self, request_id: str) -> StreamRecord | None:
        """Raises if the other one would have to say, and does not answer; so does the next."""
        self._begin_to_tend()
        found = await self.look_for_stream(request_id)
        if found is None:
            found = await self._twin.ask("look_for_stream", request_id)
        return found

    async def find_response(self, place: Place) -> bytes | None:
        self._begin_to_tend()
        found = await self.look_for_response(place)
        if found is None and not self._records.responses.is_forgotten(place):
            found = await self._twin.ask("look_for_response", place)
        return found

    async def wake(self) -> None:
        """Return when both are there to store something, or one alone has to do."""
        self._hear()
        await self._twin.tended.wait()

    # Those below are called by the other one.

    async def meet(self, idle_seconds: float) -> tuple[str, str]:
        """This process and its node. `idle_seconds`: since any gateway was heard there."""
        self._hear(idle_seconds)
        return self._life, _here()

    async def take(self, changes: StoreChanges) -> None:
        self._records.write(changes, time.monotonic())

    async def look_for_stream(self, request_id: str) -> StreamRecord | None:
        return self._records.streams.find(request_id, time.monotonic())

    async def look_for_response(self, place: Place) -> bytes | None:
        return self._records.responses.find(place, time.monotonic())

    def _hear(self, seconds_ago: float = 0.0) -> None:
        """Of a gateway that stores something here."""
        self._heard = max(self._heard, time.monotonic() - seconds_ago)
        self._begin_to_tend()

    def _begin_to_tend(self) -> None:
        if self._tending is None or self._tending.done():
            self._tending = asyncio.create_task(self._tend())

    async def _tend(self) -> None:
        while time.monotonic() < self._heard + IDLE_SECONDS or self._records:
            self._records.sweep(time.monotonic())
            node = await self._twin.tend(self._records, time.monotonic() - self._heard)
            if self._number == 1 and node == _here():
                others: list[str] = await asyncio.to_thread(_nodes_but, node)
                if others:
                    break  # the other one has all, and starts this one on another node
            await asyncio.sleep(TEND_SECONDS)
        ray.kill(ray.get_runtime_context().current_actor)


def start(shard: Shard, number: int) -> Any:
    """The actor, unless there is one already on another node than this process, if there is one:
    shards are dealt out to the others.

    It is bound to that node: Ray treats a soft affinity as met by the first node that gets the
    request. If the node dies, so does the actor, and the other one has it started again.
    """
    here = _here()
    nodes = _nodes_but(here) or [here]
    return start_actor(
        StoreActor,
        shard.actor_name(number),
        shard,
        number,
        node_id=nodes[shard.number % len(nodes)],
        max_restarts=-1,
        max_concurrency=MAX_CONCURRENCY,
    )


def _here() -> str:
    """This process' node."""
    node: str = ray.get_runtime_context().get_node_id()
    return node


def _nodes_but(here: str) -> list[str]:
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
