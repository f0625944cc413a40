"""A gateway's way to the streams that clients may resume, which an actor stores (see
`cluster/api/responses/resuming/resume`).

A gateway writes in batches, and waits only for the first write of a stream.
"""

import asyncio
import contextlib
import logging

from cluster.api.errors import Unavailable
from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.store_actor import (
    ANSWER_SECONDS,
    IDLE_SECONDS,
    START_SECONDS,
    TROUBLES,
    StoreCalls,
)
from cluster.gateway.streams.stream_records import Batch
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

BATCH_SECONDS = 0.1


class StreamStoreClient:
    """A gateway's client of the actor: a `StreamStore`. Lives in one event loop."""

    def __init__(self, app_name: str) -> None:
        self._calls = StoreCalls(app_name)
        self._batch = Batch()
        self._news, self._haste = asyncio.Event(), asyncio.Event()
        self._written = asyncio.Event()  # one event per batch, set once it is written
        self._writing = asyncio.create_task(self._write())

    async def open(self, request_id: str, record: StreamRecord) -> None:
        self._batch.opened[request_id] = record
        written = self._written
        self._news.set()
        self._haste.set()
        await written.wait()

    def told(self, told: Told) -> None:
        self._batch.told.append(told)
        self._news.set()

    def close(self, request_id: str) -> None:
        self._batch.closed.append(request_id)
        self._news.set()

    async def find(self, request_id: str) -> StreamRecord | None:
        try:
            record: StreamRecord | None = await self._calls.ask("find", request_id)
        except TROUBLES:
            message = "The store of streams does not answer now"
            raise Unavailable(message, code="not_ready", retry_after=ANSWER_SECONDS) from None
        return record

    async def _write(self) -> None:
        """Write batch after batch; one that fails twice is lost: its streams continue, but cannot
        be resumed.
        """
        with contextlib.suppress(*TROUBLES):
            await self._calls.ask("wake", seconds=START_SECONDS)
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), IDLE_SECONDS / 10)
            self._news.clear()
            self._haste.clear()
            batch, written = self._batch, self._written
            self._batch, self._written = Batch(), asyncio.Event()
            for _ in range(2):  # that an actor has ended shows at the first call
                try:
                    await self._calls.ask("write", batch)
                    break
                except TROUBLES as error:
                    logger.error("streams could not be stored: %s", in_a_line(error))
            written.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._haste.wait(), BATCH_SECONDS)
