"""A gateway's access to the stored responses."""

import logging

from cluster.api.errors import Unavailable
from cluster.gateway.streams.store_calls import StoreCalls
from cluster.gateway.streams.store_changes import Kept, StoreChanges
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

MAX_RECORD_BYTES = 4 << 20


class ResponseStoreClient:
    """A `ResponseStore`. Lives in one event loop."""

    def __init__(self, app_name: str, seconds: float) -> None:
        """`seconds`: that a response is kept."""
        self._calls = StoreCalls(app_name)
        self._seconds = seconds

    def wake(self) -> None:
        self._calls.wake()

    async def keep(self, owner: bytes, response_id: str, record: bytes) -> bool:
        if len(record) > MAX_RECORD_BYTES:
            return False
        try:
            await self._calls.write(StoreChanges(kept=[Kept((owner, response_id), record, self._seconds)]))
        except Unavailable as error:
            logger.error("response %s could not be stored: %s", response_id, in_a_line(error.__cause__ or error))
            return False
        return True

    async def find(self, owner: bytes, response_id: str) -> bytes | None:
        record: bytes | None = await self._calls.ask("find_response", (owner, response_id))
        return record

    async def forget(self, owner: bytes, response_id: str) -> bool:
        if await self.find(owner, response_id) is None:
            return False
        await self._calls.write(StoreChanges(forgotten=[(owner, response_id)]))
        return True
