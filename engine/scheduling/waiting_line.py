"""The lanes that wait for admission, in order; it can be closed to new requests while suspects are
tried.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

from engine.scheduling.sequence import Lane, SequenceGroup, Status

_order = attrgetter("order")


def insert(queue: list[Lane], lane: Lane) -> None:
    """Keep the queue in order."""
    insort(queue, lane, key=_order)


def remove(queue: list[Lane], lane: Lane) -> None:
    """Remove a lane from its queue, by binary search."""
    index = bisect_left(queue, lane.order, key=_order)
    assert queue[index] is lane, f"request {lane.group.request.id} is not in this queue"
    del queue[index]


class WaitingLine:
    """Two ordered queues served as one: lanes of groups that are admitted even when it is closed
    (`may_pass`), and the others. So closing and opening it takes constant time, even with a hundred
    thousand waiting.
    """

    def __init__(self) -> None:
        self.is_shut = False
        self._passing: list[Lane] = []
        self._others: list[Lane] = []
        self._num_lanes: Counter[SequenceGroup] = Counter()

    @property
    def num_requests(self) -> int:
        """With one lane or more in the line."""
        return len(self._num_lanes)

    def __len__(self) -> int:
        return len(self._passing) + len(self._others)

    def __iter__(self) -> Iterator[Lane]:
        """All lanes, in order."""
        return heapq.merge(self._passing, self._others, key=_order)

    def add(self, lane: Lane) -> None:
        insert(self._queue_of(lane), lane)
        self._num_lanes[lane.group] += 1

    def remove(self, lane: Lane) -> None:
        remove(self._queue_of(lane), lane)
        self._num_lanes[lane.group] -= 1
        if not self._num_lanes[lane.group]:
            del self._num_lanes[lane.group]

    def set_may_pass(self, group: SequenceGroup, *, may_pass: bool) -> None:
        """Set whether a group's lanes are admitted when the queue is closed; they need not be in it
        now.
        """
        here = [lane for lane in group.lanes if lane.status is Status.WAITING]
        for lane in here:
            self.remove(lane)
        group.may_pass = may_pass
        for lane in here:
            self.add(lane)

    def admissible(self) -> Iterator[Lane]:
        """The lanes that may be admitted, in order; the queue must not change meanwhile."""
        return iter(self._passing) if self.is_shut else iter(self)

    def first(self) -> Lane | None:
        """The next one to be admitted."""
        return next(self.admissible(), None)

    def _queue_of(self, lane: Lane) -> list[Lane]:
        return self._passing if lane.group.may_pass else self._others
