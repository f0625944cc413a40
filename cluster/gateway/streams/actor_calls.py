"""Calls to an actor that may be gone, or frozen, or about to start."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError

ANSWER_SECONDS = 3.0
START_SECONDS = 20.0  # for an actor that has to be started
TROUBLES = (RayError, ValueError, TimeoutError)  # with an actor: Ray raises ValueError if it does not exist


class ActorCalls:
    """Lives in one event loop."""

    def __init__(self, find: Callable[[int], Any]) -> None:
        """`find`: the actor, after so many calls that failed; called in a thread."""
        self._find = find
        self._actor: Any = None
        self._num_failed = 0
        self.answered = -START_SECONDS  # time.monotonic() of the last answer; long ago before the first

    async def ask(self, method: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Its answer. Raises one of TROUBLES; the next call looks for the actor anew then."""
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(self._find, self._num_failed)
            async with asyncio.timeout(seconds):
                answer = await getattr(self._actor, method).remote(*arguments)
        except TROUBLES:
            self._actor = None
            self._num_failed += 1
            raise
        self.answered = time.monotonic()
        return answer
