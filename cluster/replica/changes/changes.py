"""What trainers have done to an engine replica: other weights, pauses, sleep."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from cluster.replica.changes.resting import Resting
from cluster.replica.changes.start import Start
from cluster.replica.condition import Condition
from cluster.replica.refusals.refusal import Refusal
from cluster.weights.asked import AskedWeights, Done
from cluster.weights.head import NoRecord
from cluster.weights.record import Change, WeightsRecord
from cluster.weights.rest import Rest
from engine.errors import InvalidConfig, SquadronError
from engine.executor import Weights
from engine.frontend.async_engine import AsyncEngine

logger = logging.getLogger("squadron.engine")

T = TypeVar("T")

LOOK_SECONDS = 2.0  # between looks at the record: a change may have passed this replica by as it started


class Changes:
    """Of one replica. Lives in one event loop."""

    def __init__(self, engine: AsyncEngine, condition: Condition, tell: Callable[[], None], start: Start) -> None:
        """`tell`: the gateways, that the fingerprint is another one."""
        self._engine = engine
        self._condition = condition
        self._tell = tell
        self._start = start
        self._resting = Resting(engine.controls, tell)
        self._turn = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """The engine has started, which may have taken minutes; follow the record. What it says is
        done when this returns.
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

    async def check(self, asked: AskedWeights) -> Weights | Refusal:
        """What is asked for, all of it read; nothing is changed."""
        return await self._checked(asked.read)

    async def check_offer(self, asked: AskedWeights) -> Refusal | None:
        """What a trainer is about to broadcast, of which nothing has come yet."""
        return await self._checked(asked.check_offer)

    async def nodes(self) -> set[str]:
        """Of the engine's ranks."""
        return self._condition.nodes

    async def update(self, number: int, weights: Weights | None, mode: Any) -> Done:
        """Every rank has them when this returns without a problem: then a change of a higher number
        may follow. None: those that are configured.
        """
        async with self._turn:
            if number < self._condition.weights_number:
                late = f"a later change of weights, number {self._condition.weights_number}, came first"
                return Done(self._condition.name, late, is_late=True)
            if number == self._condition.weights_number:
                return self._done(None)
            problem = await self._do(lambda: self._engine.controls.update_weights(weights, mode, self._tell))
            if problem is None:
                self._condition.weights_number, self._condition.lack = number, None
            self._tell()
        return self._done(problem)

    async def current(self) -> tuple[int, Weights | None]:
        """What the engine has, and the number of the change that it is of."""
        return self._condition.weights_number, self._engine.observer.weights

    async def control(self, rest: Rest, what: str, *arguments: Any) -> Done:
        """See `Resting.control`."""
        return self._done(await self._resting.control(rest, what, *arguments))

    async def state(self) -> dict[str, bool]:
        controls = self._engine.controls
        return {"is_paused": controls.is_paused, "is_sleeping": controls.is_sleeping}

    async def look(self, record: WeightsRecord) -> None:
        """Catch up with what has passed this replica by. Raises NoRecord."""
        self._resting.take(await asyncio.to_thread(record.rest.read))
        change = await asyncio.to_thread(record.read)
        if change.number <= self._condition.weights_number:
            self._condition.lack = None
        elif change.are_elsewhere:
            self._condition.lack = lacking(change)
        else:
            done = await self.update(change.number, change.weights, "wait")
            if done.problem is not None:
                self._condition.lack = f"{lacking(change)}: {done.problem}"

    async def _checked(self, read: Callable[..., T]) -> T | Refusal:
        try:
            return await asyncio.to_thread(read, self._engine.config)
        except InvalidConfig as error:
            return Refusal("invalid", str(error), None, "invalid_weights")

    async def _keep_looking(self, record: WeightsRecord) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look(record)

    async def _look(self, record: WeightsRecord) -> None:
        try:
            await self.look(record)
        except NoRecord as error:
            logger.warning("%s", error)

    async def _do(self, work: Callable[[], Any]) -> str | None:
        """The problem, if there is one."""
        try:
            await asyncio.wrap_future(work())
        except SquadronError as error:
            logger.warning("not changed: %s", error)
            return str(error)
        return None

    def _done(self, problem: str | None) -> Done:
        return Done(self._condition.name, problem)


def lacking(change: Change) -> str:
    """What a replica says that has not got the weights of that change."""
    return f"it waits for the weights of version {change.version!r}"
