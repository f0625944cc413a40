"""Calls to an actor that may be gone, or frozen, or about to start."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError

ANSWER_SECONDS = 3.0
START_SECONDS = 20.0  # for an actor that has to be started
TROUBLES = (RayError, ValueError, TimeoutError)  # with an actor: Ray raises ValueError if it does not exist


class ActorCalls:
    """Lives in one event loop."""

    def __init__(self, find: Callable[[int | None], tuple[int, Any]]) -> None:
        """`find`: an actor and its number, if there is a choice another than the one that a call
        last failed of (None: none has); called in a thread.
        """
        self._find = find
        self._found: tuple[int, Any] | None = None
        self._failed: int | None = None
        self.answered = -math.inf  # time.monotonic() of the last answer

    async def ask(self, method: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Its answer, within so many seconds from now. Raises one of TROUBLES; the next call looks
        for an actor anew then.
        """
        found = self._found
        try:
            async with asyncio.timeout(seconds):
                if found is None:
                    found = self._found = await asyncio.to_thread(self._find, self._failed)
                answer = await getattr(found[1], method).remote(*arguments)
        except TROUBLES:
            if found is not None:
                self._failed = found[0]
                if self._found is found:  # or another call has already found the next one
                    self._found = None
            raise
        self.answered = time.monotonic()
        return answer
