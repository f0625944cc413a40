"""A gateway's way to the stored streams that clients may resume (see
`cluster/api/responses/resuming/resume`).

A gateway writes in batches, and waits only for the first write of a stream.
"""

import asyncio
import contextlib
import logging

from cluster.api.errors import Unavailable
from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.store_actor import IDLE_SECONDS
from cluster.gateway.streams.store_calls import StoreCalls
from cluster.gateway.streams.store_changes import StoreChanges
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

BATCH_SECONDS = 0.1


class StreamStoreClient:
    """A `StreamStore`. Lives in one event loop."""

    def __init__(self, app_name: str) -> None:
        self._calls = StoreCalls(app_name)
        self._changes = StoreChanges()
        self._news, self._haste = asyncio.Event(), asyncio.Event()
        self._written = asyncio.Event()  # one event per write, set once it is done
        self._writing = asyncio.create_task(self._write())

    async def open(self, request_id: str, record: StreamRecord) -> None:
        self._changes.opened[request_id] = record
        written = self._written
        self._news.set()
        self._haste.set()
        await written.wait()

    def told(self, told: Told) -> None:
        self._changes.told.append(told)
        self._news.set()

    def close(self, request_id: str) -> None:
        self._changes.closed.append(request_id)
        self._news.set()

    async def find(self, request_id: str) -> StreamRecord | None:
        record: StreamRecord | None = await self._calls.ask("find_stream", request_id)
        return record

    async def _write(self) -> None:
        """Write batch after batch; one that neither actor takes is lost: its streams continue, but
        cannot be resumed.
        """
        self._calls.wake()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), IDLE_SECONDS / 10)
            self._news.clear()
            self._haste.clear()
            changes, written = self._changes, self._written
            self._changes, self._written = StoreChanges(), asyncio.Event()
            try:
                await self._calls.write(changes)
            except Unavailable as error:
                logger.error("streams could not be stored: %s", in_a_line(error.__cause__ or error))
            written.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._haste.wait(), BATCH_SECONDS)
