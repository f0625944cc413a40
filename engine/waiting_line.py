"""Who waits for admission, in order, with a door that may be shut to newcomers while suspects stand trial."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from engine.sequence import SequenceGroup, Status

_order = attrgetter("order")


def insert(queue: list[SequenceGroup], group: SequenceGroup) -> None:
    """Keep the queue in order."""
    insort(queue, group, key=_order)


def remove(queue: list[SequenceGroup], group: SequenceGroup) -> None:
    """Take a group out of a queue that it is in, without asking each of the others."""
    index = bisect_left(queue, group.order, key=_order)
    assert queue[index] is group, f"request {group.request_id} is not in this queue"
    del queue[index]


class WaitingLine:
    """Two queues served as one, each in order: groups that pass a shut door (`may_pass`), and the others.

    So shutting and opening it touches nobody who waits, of whom there may be a hundred thousand.
    """

    def __init__(self) -> None:
        self.is_shut = False
        self._passing: list[SequenceGroup] = []
        self._others: list[SequenceGroup] = []

    def __len__(self) -> int:
        return len(self._passing) + len(self._others)

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Everybody, in order."""
        return heapq.merge(self._passing, self._others, key=_order)

    def add(self, group: SequenceGroup) -> None:
        insert(self._queue_of(group), group)

    def remove(self, group: SequenceGroup) -> None:
        remove(self._queue_of(group), group)

    def set_may_pass(self, group: SequenceGroup, *, may_pass: bool) -> None:
        """Say whether the door, when shut, lets a group through; it need not be in the line now."""
        is_here = group.status is Status.WAITING
        if is_here:
            self.remove(group)
        group.may_pass = may_pass
        if is_here:
            self.add(group)

    def admissible(self) -> Iterator[SequenceGroup]:
        """Those whom the door lets through, in order; the line must not change meanwhile."""
        return iter(self._passing) if self.is_shut else iter(self)

    def first(self) -> SequenceGroup | None:
        """The next one to be admitted."""
        return next(self.admissible(), None)

    def _queue_of(self, group: SequenceGroup) -> list[SequenceGroup]:
        return self._passing if group.may_pass else self._others
