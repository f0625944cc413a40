"""A gateway's access to the stored responses."""

import logging

from cluster.api.errors import Unavailable
from cluster.gateway.streams.records.store_changes import Kept, StoreChanges
from cluster.gateway.streams.store_shards import Found, StoreShards
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

MAX_RECORD_BYTES = 4 << 20


class ResponseStoreClient:
    """A `ResponseStore`. Lives in one event loop."""

    def __init__(self, app_name: str, num_shards: int, seconds: float) -> None:
        """`seconds`: that a response is kept."""
        self._shards = StoreShards(app_name, num_shards)
        self._seconds = seconds

    def wake(self) -> None:
        self._shards.wake()

    async def keep(self, owner: bytes, response_id: str, record: bytes) -> bool:
        if len(record) > MAX_RECORD_BYTES:
            return False
        try:
            kept = Kept((owner, response_id), record, self._seconds)
            await self._shards.of(response_id).write(StoreChanges(kept=[kept]))
        except Unavailable as error:
            logger.error("response %s could not be stored: %s", response_id, in_a_line(error.__cause__ or error))
            return False
        return True

    async def find(self, owner: bytes, response_id: str) -> bytes | None:
        record: bytes | None = (await self._find(owner, response_id)).record
        return record

    async def forget(self, owner: bytes, response_id: str) -> bool:
        found = await self._find(owner, response_id)
        if found.record is None:
            return False
        await found.shard.write(StoreChanges(forgotten=[(owner, response_id)]))
        return True

    async def _find(self, owner: bytes, response_id: str) -> Found:
        return await self._shards.find("find_response", response_id, (owner, response_id))
