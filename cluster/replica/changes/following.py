"""Keeps an engine replica as the record says that all replicas of its model are to be: what has
changed while it started, or has passed it by.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cluster.head.store import NoRecord
from cluster.replica.changes.resting import Resting
from cluster.replica.changes.start import Start
from cluster.replica.condition import Condition
from cluster.weights.asked import Done
from cluster.weights.record import Change, WeightsRecord
from engine.errors import going_on
from engine.executor import Weights

logger = logging.getLogger("squadron.engine")

LOOK_SECONDS = 2.0  # between looks at the record

Update = Callable[[int, Weights | None, str], Awaitable[Done]]


class Following:
    """Of one replica. Lives in one event loop."""

    def __init__(self, start: Start, condition: Condition, resting: Resting, update: Update) -> None:
        """`update`: see `Changes.update`."""
        self._start = start
        self._condition = condition
        self._resting = resting
        self._update = update
        self._looking: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """The engine has started, which may have taken minutes. What the record says is done when
        this returns.
        """
        change, record = self._start.change, self._start.record
        if change.are_elsewhere:
            self._condition.lack = lacking(change)
        else:
            self._condition.weights_number = change.number
        if record is not None:
            self._resting.take(self._start.rest)
            await self._look(record)
            await self._resting.until_done()
            self._looking = asyncio.create_task(self._keep_looking(record))

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def look(self, record: WeightsRecord) -> None:
        """Catch up. Raises NoRecord."""
        self._resting.take(await asyncio.to_thread(record.rest.read))
        change = await asyncio.to_thread(record.read)
        if change.number <= self._condition.weights_number:
            self._condition.lack = None
        elif change.are_elsewhere:
            self._condition.lack = lacking(change)
        else:
            done = await self._update(change.number, change.weights, "wait")
            if done.problem is not None and not done.is_late:
                self._condition.lack = f"{lacking(change)}: {done.problem}"

    async def _keep_looking(self, record: WeightsRecord) -> None:
        """To the end: what cannot be done now must not keep the replica from what comes later."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with going_on(logger, "following the record"):
                await self._look(record)

    async def _look(self, record: WeightsRecord) -> None:
        try:
            await self.look(record)
        except NoRecord as error:
            logger.warning("%s", error)


def lacking(change: Change) -> str:
    """What a replica says that has not got the weights of that change."""
    return f"it waits for the weights of version {change.version!r}"
