"""The lanes that wait for admission, in order and by keys; it can be closed to new requests while
suspects are tried.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import TypeVar

from engine.scheduling.sequence import Lane, SequenceGroup, Status
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
    """The lanes of one key: those of groups that are admitted even when the queue is closed
    (`may_pass`), and the others. So closing and opening it takes constant time, even with a hundred
    thousand waiting.
    """

    def __init__(self) -> None:
        self.passing: list[Lane] = []
        self.others: list[Lane] = []

    def queue_of(self, lane: Lane) -> list[Lane]:
        return self.passing if lane.group.may_pass else self.others

    def admissible(self, *, is_shut: bool) -> Iterator[Lane]:
        return iter(self.passing) if is_shut else heapq.merge(self.passing, self.others, key=_order)

    def first(self, *, is_shut: bool) -> Lane | None:
        if is_shut or not self.others:
            return self.passing[0] if self.passing else None
        return min(self.passing[0], self.others[0], key=_order) if self.passing else self.others[0]


class WaitingQueue:
    """Each key's lanes are in order; whose turn it is, `FairShares` knows."""

    def __init__(self) -> None:
        self.is_shut = False
        self.shares = FairShares()
        self._by_key: dict[str | None, _KeyQueue] = {}  # by key; none is empty
        self._num_lanes: Counter[SequenceGroup] = Counter()
        self.num_places = 0  # that they want
        self.num_tokens = 0  # of their prompts
        self.adapters = Counter[str]()  # lanes, by the name of their adapter

    @property
    def num_requests(self) -> int:
        """With one lane or more in the queue."""
        return len(self._num_lanes)

    def __len__(self) -> int:
        return sum(len(of_key.passing) + len(of_key.others) for of_key in self._by_key.values())

    def __iter__(self) -> Iterator[Lane]:
        """All lanes, in order."""
        by_key = self._by_key.values()
        return heapq.merge(*(queue for of_key in by_key for queue in (of_key.passing, of_key.others)), key=_order)

    def add(self, lane: Lane) -> None:
        request = lane.group.request
        self.shares.join(request)
        insert(self._by_key.setdefault(request.share.key, _KeyQueue()).queue_of(lane), lane)
        if request.adapter is not None:
            count(self.adapters, request.adapter.name, 1)
        self.num_places += lane.num_places
        self._num_lanes[lane.group] += 1
        if self._num_lanes[lane.group] == 1:
            self.num_tokens += len(lane.group.prompt_token_ids)

    def remove(self, lane: Lane) -> None:
        request = lane.group.request
        of_key = self._by_key[request.share.key]
        remove(of_key.queue_of(lane), lane)
        if not of_key.passing and not of_key.others:
            del self._by_key[request.share.key]
        self.shares.leave(request)
        if request.adapter is not None:
            count(self.adapters, request.adapter.name, -1)
        self.num_places -= lane.num_places
        self._num_lanes[lane.group] -= 1
        if not self._num_lanes[lane.group]:
            del self._num_lanes[lane.group]
            self.num_tokens -= len(lane.group.prompt_token_ids)

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
        firsts = [of_key.first(is_shut=self.is_shut) for of_key in self._by_key.values()]
        found = [lane for lane in firsts if lane is not None]
        return self.shares.turn(found) if found else None

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
