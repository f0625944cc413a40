"""Deadlines of the requests that have a timeout."""

import math

from engine.scheduling.sequence import SequenceGroup


class Deadlines:
    """Times are seconds of time.monotonic(). Costs nothing in steps in which none passes."""

    def __init__(self) -> None:
        self._times: dict[SequenceGroup, float] = {}
        self._first = math.inf  # or earlier, where that request has ended

    def add(self, group: SequenceGroup, time: float) -> None:
        self._times[group] = time
        self._first = min(self._first, time)

    def remove(self, group: SequenceGroup) -> None:
        self._times.pop(group, None)

    def passed(self, now: float) -> list[SequenceGroup]:
        if now < self._first:
            return []
        late = [group for group, time in self._times.items() if time <= now]
        self._first = min((time for time in self._times.values() if time > now), default=math.inf)
        return late
