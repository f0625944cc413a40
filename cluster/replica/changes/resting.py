"""Whether an engine replica pauses or sleeps, as all replicas of its model do."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cluster.weights.rest import RUNS, Rest
from engine.errors import SquadronError
from engine.frontend.controls import Controls

logger = logging.getLogger("squadron.engine")


class Resting:
    """Of one replica. Lives in one event loop."""

    def __init__(self, controls: Controls, tell: Callable[[], None]) -> None:
        """`tell`: the gateways, that the engine is awake: one that started asleep has its
        fingerprint then.
        """
        self._controls = controls
        self._tell = tell
        self._rest = RUNS
        self._posted: list[Future[None]] = []

    def take(self, rest: Rest) -> None:
        """Have the engine be as it says, unless it has been told so, or anything later."""
        if rest.number > self._rest.number:
            self._post(rest, rest.calls())

    async def control(self, rest: Rest, what: str, *arguments: Any) -> str | None:
        """Tell the engine this, which makes it be as `rest` says, and wait until it is; the
        problem, if there is one.
        """
        if rest.number == self._rest.number + 1:
            self._post(rest, [(what, arguments)])
        else:
            self.take(rest)
        return await self.until_done()

    async def until_done(self) -> str | None:
        """What was taken last; the problem, if there is one."""
        problems = [await problem_of(each) for each in self._posted]
        return next(filter(None, problems), None)

    def _post(self, rest: Rest, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        """At once, since what comes later may end what still waits for requests."""
        self._rest = rest
        self._posted = [self._call(what, arguments) for what, arguments in calls]

    def _call(self, what: str, arguments: tuple[Any, ...]) -> "Future[None]":
        if what == "wake_up":
            (tags,) = arguments
            return self._controls.wake_up(tags, awake=self._tell)
        done: Future[None] = getattr(self._controls, what)(*arguments)
        return done


async def problem_of(done: "Future[None]") -> str | None:
    """Of what an engine was told to do, once it has done it, if there is one. Whoever does not wait
    any more ends nothing.
    """
    try:
        await asyncio.shield(asyncio.wrap_future(done))
    except SquadronError as error:
        logger.warning("not changed: %s", error)
        return str(error)
    return None
