"""A gateway's calls to one shard of the store."""

import asyncio
import contextlib
import time
from functools import partial
from typing import Any

from cluster.actors.named import find_actor
from cluster.api.errors import Unavailable
from cluster.gateway.streams.actor_calls import ANSWER_SECONDS, START_SECONDS, TROUBLES, ActorCalls
from cluster.gateway.streams.records.store_changes import StoreChanges
from cluster.gateway.streams.shard import Shard
from cluster.gateway.streams.store_actor import IDLE_SECONDS, start


class StoreCalls:
    """To either of its actors, and to the other one after a failure. The first gateway that calls
    starts the one, which starts the other. Lives in one event loop.
    """

    def __init__(self, shard: Shard) -> None:
        self._calls = ActorCalls(partial(_either, shard))
        self._waking: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Something will have to be stored: the actors may start meanwhile."""
        is_awake = time.monotonic() < self._calls.answered + IDLE_SECONDS / 2
        if not is_awake and (self._waking is None or self._waking.done()):
            self._waking = asyncio.create_task(self._wake())

    async def write(self, changes: StoreChanges) -> None:
        """Return when both actors have it, or one that lives alone. Raises Unavailable."""
        if self._waking is not None:
            await asyncio.wait([self._waking])  # also others' way: it is not cancelled with this call
        await self.ask("write", changes)

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Raises Unavailable."""
        with contextlib.suppress(*TROUBLES):  # again: that an actor has ended shows at the first call
            return await self._calls.ask(method, *arguments)
        try:
            return await self._calls.ask(method, *arguments, seconds=START_SECONDS)
        except TROUBLES as error:
            raise not_answering() from error

    async def _wake(self) -> None:
        with contextlib.suppress(*TROUBLES):
            await self._calls.ask("wake", seconds=START_SECONDS)


def not_answering() -> Unavailable:
    message = "The store of streams and responses does not answer now"
    return Unavailable(message, code="not_ready", retry_after=ANSWER_SECONDS)


def _either(shard: Shard, failed: int | None) -> tuple[int, Any]:
    first = 0 if failed is None else 1 - failed
    for number in (first, 1 - first):
        with contextlib.suppress(ValueError):
            return number, find_actor(shard.actor_name(number))
    return 0, start(shard, 0)
