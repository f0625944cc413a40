"""Writes a gateway's streams to one shard of the store, in batches."""

import asyncio
import contextlib
import logging

from cluster.api.errors import Unavailable
from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.records.store_changes import StoreChanges
from cluster.gateway.streams.store_actor import IDLE_SECONDS
from cluster.gateway.streams.store_calls import StoreCalls
from engine.errors import going_on, in_a_line

logger = logging.getLogger("squadron.gateway")


class StreamWriter:
    """See `StreamStore`. A stream waits only for its first write. Lives in one event loop."""

    def __init__(self, shard: StoreCalls, batch_seconds: float) -> None:
        """`batch_seconds`: between two writes, unless a stream waits for one."""
        self._shard = shard
        self._batch_seconds = batch_seconds
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

    def adopt(self, request_id: str, record: StreamRecord) -> None:
        """A stream that another shard has, and goes on having."""
        self._changes.opened.setdefault(request_id, record)
        self._news.set()

    def told(self, told: Told) -> None:
        self._changes.told.append(told)
        self._news.set()

    def close(self, request_id: str) -> None:
        self._changes.closed.append(request_id)
        self._news.set()

    async def _write(self) -> None:
        """Write batch after batch; one that neither actor takes is lost: its streams continue, but
        cannot be resumed.
        """
        self._shard.wake()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), IDLE_SECONDS / 10)
            self._news.clear()
            self._haste.clear()
            changes, written = self._changes, self._written
            self._changes, self._written = StoreChanges(), asyncio.Event()
            with going_on(logger, "storing streams"):
                try:
                    await self._shard.write(changes)
                except Unavailable as error:
                    logger.error("streams could not be stored: %s", in_a_line(error.__cause__ or error))
            written.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._haste.wait(), self._batch_seconds)
