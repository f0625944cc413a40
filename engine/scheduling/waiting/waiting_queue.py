"""The lanes that wait for admission, in order and by keys; it can be closed to new requests while
suspects are tried.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import TypeVar

from engine.scheduling.sequence import Lane, SequenceGroup, Status
from engine.scheduling.waiting.counted import Counted, Returning
from engine.scheduling.waiting.fair_shares import FairShares

T = TypeVar("T")

_order = attrgetter("order")


def insert(queue: list[Lane], lane: Lane) -> None:
    """Keep the queue in order."""
    insort(queue, lane, key=_order)


def remove(queue: list[Lane], lane: Lane) -> None:
    """Remove a lane from its queue, by binary search."""
    index = bisect_left(queue, lane.order, key=_order)
    assert queue[index] is lane, f"request {lane.group.request.id} is not in this queue"
    del queue[index]


def count(counts: Counter[T], key: T, by: int) -> None:
    """So many have come, or left: keys that none is left of leave with the last."""
    counts[key] += by
    if not counts[key]:
        del counts[key]


class _KeyQueue:
    """The lanes of one key, by whether their groups are admitted even when the queue is closed
    (`may_pass`), and by whether they have an adapter. So closing and opening it, and passing over
    those that wait for an adapter's place, take constant time, even with a hundred thousand
    waiting.
    """

    def __init__(self) -> None:
        kinds = [(may_pass, has_adapter) for may_pass in (False, True) for has_adapter in (False, True)]
        self._queues: dict[tuple[bool, bool], list[Lane]] = {kind: [] for kind in kinds}

    @property
    def all(self) -> Collection[list[Lane]]:
        return self._queues.values()

    def queue_of(self, lane: Lane) -> list[Lane]:
        return self._queues[lane.group.may_pass, lane.group.request.adapter is not None]

    def admissible(self, *, is_shut: bool) -> Iterator[Lane]:
        return heapq.merge(*(queue for (may_pass, _), queue in self._queues.items() if may_pass >= is_shut), key=_order)

    def first(self, *, is_shut: bool, has_adapter: bool | None) -> Lane | None:
        """`has_adapter`: None: either."""
        firsts = [
            queue[0]
            for (may_pass, has_one), queue in self._queues.items()
            if queue and may_pass >= is_shut and has_adapter in (None, has_one)
        ]
        return min(firsts, key=_order, default=None)


class WaitingQueue:
    """Each key's lanes are in order; whose turn it is, `FairShares` knows."""

    def __init__(self) -> None:
        self.is_shut = False
        self.shares = FairShares()
        self._by_key: dict[str | None, _KeyQueue] = {}  # by key; none is empty
        self.counted = Counted()
        self.returning = Returning()
        self.adapters = Counter[str]()  # lanes, by the name of their adapter

    def __len__(self) -> int:
        return sum(len(queue) for of_key in self._by_key.values() for queue in of_key.all)

    def __iter__(self) -> Iterator[Lane]:
        """All lanes, in order."""
        return heapq.merge(*(queue for of_key in self._by_key.values() for queue in of_key.all), key=_order)

    def add(self, lane: Lane) -> None:
        request = lane.group.request
        self.shares.join(request)
        insert(self._by_key.setdefault(request.share.key, _KeyQueue()).queue_of(lane), lane)
        if request.adapter is not None:
            count(self.adapters, request.adapter.name, 1)
        self.counted.add(lane)
        self.returning.look_at(lane)

    def remove(self, lane: Lane) -> None:
        request = lane.group.request
        of_key = self._by_key[request.share.key]
        remove(of_key.queue_of(lane), lane)
        if not any(of_key.all):
            del self._by_key[request.share.key]
        self.shares.leave(request)
        if request.adapter is not None:
            count(self.adapters, request.adapter.name, -1)
        self.counted.remove(lane)
        self.returning.forget(lane)

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

    def first(self) -> Lane | None:
        """The next one to be admitted."""
        return self._turn(self._firsts(has_adapter=None))

    def first_without_adapter(self) -> Lane | None:
        return self._turn(self._firsts(has_adapter=False))

    def oldest_with_adapter(self) -> Lane | None:
        """The first of them in order, whichever key's turn it is."""
        return min(self._firsts(has_adapter=True), key=_order, default=None)

    def _firsts(self, *, has_adapter: bool | None) -> list[Lane]:
        firsts = (of_key.first(is_shut=self.is_shut, has_adapter=has_adapter) for of_key in self._by_key.values())
        return [lane for lane in firsts if lane is not None]

    def _turn(self, firsts: list[Lane]) -> Lane | None:
        return self.shares.turn(firsts) if firsts else None

    def admissible(self) -> Iterator[Lane]:
        """The lanes that may be admitted, in turn, each counted with all its tokens; the queue must
        not change meanwhile.
        """
        by_key = {key: of_key.admissible(is_shut=self.is_shut) for key, of_key in self._by_key.items()}
        firsts = {key: lane for key, of_key in by_key.items() if (lane := next(of_key, None)) is not None}
        promised: defaultdict[str | None, float] = defaultdict(float)
        while firsts:
            lane = self.shares.turn(list(firsts.values()), promised)
            yield lane
            share = lane.group.request.share
            promised[share.key] += sum(seq.num_tokens for seq in lane.seqs) / share.weight
            follower = next(by_key[share.key], None)
            if follower is None:
                del firsts[share.key]
            else:
                firsts[share.key] = follower
