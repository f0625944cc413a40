"""A gateway's access to the responses that an actor stores."""

import asyncio
import contextlib
import logging
from typing import Any

from cluster.api.errors import Unavailable
from cluster.gateway.streams.store_actor import ANSWER_SECONDS, START_SECONDS, TROUBLES, StoreCalls
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

MAX_RECORD_BYTES = 4 << 20


class ResponseStoreClient:
    """A `ResponseStore`. Lives in one event loop."""

    def __init__(self, app_name: str, seconds: float) -> None:
        """`seconds`: that a response is kept."""
        self._calls = StoreCalls(app_name)
        self._seconds = seconds
        self._waking: asyncio.Task[None] | None = None

    def wake(self) -> None:
        if self._waking is None:
            self._waking = asyncio.create_task(self._wake())

    async def keep(self, owner: bytes, response_id: str, record: bytes) -> bool:
        if len(record) > MAX_RECORD_BYTES:
            return False
        if self._waking is not None:
            await self._waking
        for _ in range(2):  # that an actor has ended shows at the first call
            try:
                await self._calls.ask("keep_response", owner, response_id, record, self._seconds)
                return True
            except TROUBLES as error:
                logger.error("response %s could not be stored: %s", response_id, in_a_line(error))
        return False

    async def find(self, owner: bytes, response_id: str) -> bytes | None:
        record: bytes | None = await self._ask("find_response", owner, response_id)
        return record

    async def forget(self, owner: bytes, response_id: str) -> bool:
        was_there: bool = await self._ask("forget_response", owner, response_id)
        return was_there

    async def _ask(self, method: str, owner: bytes, response_id: str) -> Any:
        with contextlib.suppress(*TROUBLES):  # again: that an actor has ended shows at the first call
            return await self._calls.ask(method, owner, response_id)
        try:
            return await self._calls.ask(method, owner, response_id, seconds=START_SECONDS)
        except TROUBLES:
            message = "The store of responses does not answer now"
            raise Unavailable(message, code="not_ready", retry_after=ANSWER_SECONDS) from None

    async def _wake(self) -> None:
        """The actor starts while the first response is generated."""
        with contextlib.suppress(*TROUBLES):
            await self._calls.ask("wake", seconds=START_SECONDS)
