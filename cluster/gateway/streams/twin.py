"""One of the store's two actors, as the other one sees it."""

import asyncio
import logging
import time
from typing import Any

from cluster.gateway.streams.actor_calls import START_SECONDS, TROUBLES, ActorCalls
from cluster.gateway.streams.records.store_changes import StoreChanges
from cluster.gateway.streams.records.store_records import StoreRecords
from engine.errors import in_a_line

logger = logging.getLogger("squadron.gateway")

TWIN_SECONDS = 2.0  # for its answer, before the gateway gives up the one that waits for it


class Twin:
    """It is told all that is new. What it lacks nevertheless, since it has just started or could
    not be reached, it is given by `tend`. Lives in one event loop.
    """

    def __init__(self, calls: ActorCalls) -> None:
        """`calls`: start the actor if there is none."""
        self._calls = calls
        self._told: str | None = None  # which of its lives is told what is new; None: it has to be given all first
        self.tended = asyncio.Event()  # since the first time that it has all, or could not be given it

    async def pass_on(self, changes: StoreChanges) -> None:
        """Return once it has stored it, too, or has shown that it cannot."""
        if self._told is not None:
            try:
                await self._calls.ask("take", changes, seconds=TWIN_SECONDS)
            except TROUBLES as error:
                self._lose(error)

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Raises one of TROUBLES."""
        return await self._calls.ask(method, *arguments, seconds=TWIN_SECONDS)

    async def tend(self, records: StoreRecords, idle_seconds: float) -> str | None:
        """Have it be there, and have all that is stored here; its node, if that is so.
        `idle_seconds`: since any gateway was heard here.
        """
        try:
            life, node = await self._calls.ask("meet", idle_seconds, seconds=START_SECONDS)
            if life != self._told:
                self._told = life  # from now on it is told what is new
                for changes in records.everything(time.monotonic()):
                    await self._calls.ask("take", changes, seconds=START_SECONDS)
        except TROUBLES as error:
            self._lose(error)
        self.tended.set()
        return node if self._told is not None else None

    def _lose(self, error: Exception) -> None:
        if self._told is not None or not self.tended.is_set():
            logger.warning("one of the two actors that store streams and responses is away: %s", in_a_line(error))
        self._told = None
