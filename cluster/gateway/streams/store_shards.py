"""All shards of an application's store, as one gateway calls them."""

import asyncio
from typing import Any, NamedTuple

from cluster.gateway.streams.actor_calls import ANSWER_SECONDS, TROUBLES
from cluster.gateway.streams.shard import Shard, number_of, running_shards
from cluster.gateway.streams.store_calls import StoreCalls, not_answering


class Found(NamedTuple):
    """What was looked for, None if it is not stored, and the shard that it is in."""

    record: Any
    shard: StoreCalls
    is_elsewhere: bool  # than where this gateway stores what has its id


class StoreShards:
    """Lives in one event loop."""

    def __init__(self, app_name: str, num_shards: int) -> None:
        self.own = [StoreCalls(Shard(app_name, number, num_shards)) for number in range(num_shards)]
        self._app_name = app_name
        self._others: dict[Shard, StoreCalls] = {}  # of other numbers of shards, as far as they were asked

    def wake(self) -> None:
        for shard in self.own:
            shard.wake()

    def of(self, record_id: str) -> StoreCalls:
        """The shard that this gateway stores it in."""
        return self.own[number_of(record_id, len(self.own))]

    async def find(self, method: str, record_id: str, argument: Any) -> Found:
        """Raises Unavailable if a shard that may have it does not answer."""
        own = self.of(record_id)
        record = await own.ask(method, argument)
        if record is None:
            for other in await self._elsewhere(record_id):
                if (record := await other.ask(method, argument)) is not None:
                    return Found(record, other, True)
        return Found(record, own, False)

    async def _elsewhere(self, record_id: str) -> list[StoreCalls]:
        """Where gateways with another number of shards would have stored it."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                running = await asyncio.to_thread(running_shards, self._app_name)
        except TROUBLES as error:
            raise not_answering() from error
        others = [shard for shard in running if shard.num_shards != len(self.own)]
        self._others = {shard: self._others.get(shard) or StoreCalls(shard) for shard in others}
        return [
            calls for shard, calls in self._others.items() if shard.number == number_of(record_id, shard.num_shards)
        ]
