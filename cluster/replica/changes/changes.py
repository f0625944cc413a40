"""What trainers have done to an engine replica: other weights, pauses, sleep."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from cluster.replica.changes.following import Following
from cluster.replica.changes.resting import Resting, problem_of
from cluster.replica.changes.start import Start
from cluster.replica.condition import Condition
from cluster.replica.refusals.refusal import Refusal
from cluster.weights.asked import AskedWeights, Done
from engine.errors import InvalidConfig
from engine.executor import Weights
from engine.frontend.async_engine import AsyncEngine

T = TypeVar("T")


class Changes:
    """Of one replica. Lives in one event loop."""

    def __init__(self, engine: AsyncEngine, condition: Condition, tell: Callable[[], None], start: Start) -> None:
        """`tell`: the gateways, that the fingerprint is another one."""
        self._engine = engine
        self._condition = condition
        self._tell = tell
        self._resting = Resting(engine.controls, tell)
        self._following = Following(start, condition, self._resting, self.update)
        self._turn = asyncio.Lock()

    async def begin(self) -> None:
        """See `Following.begin`."""
        await self._following.begin()

    def close(self) -> None:
        self._following.close()

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
            problem = await problem_of(self._engine.controls.update_weights(weights, mode, self._tell))
            if problem is None:
                self._condition.weights_number, self._condition.lack = number, None
            self._tell()
        return self._done(problem)

    async def current(self) -> tuple[int, Weights | None]:
        """What the engine has, and the number of the change that it is of."""
        return self._condition.weights_number, self._engine.observer.weights

    async def control(self, *told: Any) -> Done:
        """See `Resting.control`."""
        return self._done(await self._resting.control(*told))

    async def state(self) -> dict[str, bool]:
        controls = self._engine.controls
        return {"is_paused": controls.is_paused, "is_sleeping": controls.is_sleeping}

    async def _checked(self, read: Callable[..., T]) -> T | Refusal:
        try:
            return await asyncio.to_thread(read, self._engine.config)
        except InvalidConfig as error:
            return Refusal("invalid", str(error), None, "invalid_weights")

    def _done(self, problem: str | None) -> Done:
        return Done(self._condition.name, problem)
