"""Deadlines of the requests that have a timeout."""

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

from engine.request import Request

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    """Of what has a key. Times are seconds of time.monotonic(). Costs nothing in steps in which
    none passes.
    """

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self.first = math.inf  # or earlier, where that request has ended

    def add(self, key: Key, time: float) -> None:
        self._times[key] = time
        self.first = min(self.first, time)

    def remove(self, key: Key) -> None:
        self._times.pop(key, None)
        if not self._times:
            self.first = math.inf

    def passed(self, now: float) -> list[Key]:
        if now < self.first:
            return []
        late = [key for key, time in self._times.items() if time <= now]
        self.first = min((time for time in self._times.values() if time > now), default=math.inf)
        return late


def late_message(request: Request) -> str:
    """The error of a request whose timeout has passed."""
    return f"its answer was not complete within its timeout ({request.timeout:g} s were left here)"
