"""The stored responses, bounded in number, bytes and age; the oldest are dropped, and cannot be
retrieved.

A response is stored once and may be forgotten once, for good: the ids of those that were forgotten
are remembered, the last so many, since another copy of the store may still have the response.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from cluster.gateway.streams.records.store_changes import Kept, Place, StoreChanges

MAX_COUNT = 16_384
MAX_BYTES = 128 << 20
RECORD_BYTES = 512  # of one in memory, beside its own
BATCH_BYTES = 1 << 20  # of those that are told at once, if it is more than one


class _Stored(NamedTuple):
    record: bytes
    until: float

    @property
    def num_bytes(self) -> int:
        return len(self.record) + RECORD_BYTES


class ResponseRecords:
    """By owner and id, the oldest first. `now` is of any monotonic clock."""

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._stored: OrderedDict[Place, _Stored] = OrderedDict()
        self._forgotten: OrderedDict[Place, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def write(self, changes: StoreChanges, now: float) -> None:
        for place in changes.forgotten:
            self._drop(place)
            self._forgotten[place] = None
        while len(self._forgotten) > self._max_count:
            self._forgotten.popitem(last=False)
        for place, record, seconds in changes.kept:
            if place not in self._stored and place not in self._forgotten:
                self._stored[place] = stored = _Stored(record, now + seconds)
                self._num_bytes += stored.num_bytes
        while len(self._stored) > self._max_count or self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._stored)))

    def find(self, place: Place, now: float) -> bytes | None:
        stored = self._stored.get(place)
        return None if stored is None or stored.until <= now else stored.record

    def is_forgotten(self, place: Place) -> bool:
        return place in self._forgotten

    def everything(self, now: float) -> Iterator[StoreChanges]:
        """For another copy. Each part is made when it is asked for, of what is stored then."""
        yield StoreChanges(forgotten=list(self._forgotten))
        changes, num_bytes = StoreChanges(), 0
        for place in list(self._stored):
            stored = self._stored.get(place)
            if stored is None:
                continue
            if num_bytes + stored.num_bytes > BATCH_BYTES and changes.kept:
                yield changes
                changes, num_bytes = StoreChanges(), 0
            changes.kept.append(Kept(place, stored.record, stored.until - now))
            num_bytes += stored.num_bytes
        yield changes

    def sweep(self, now: float) -> None:
        """Drop what is too old."""
        for place in [place for place, stored in self._stored.items() if stored.until <= now]:
            self._drop(place)

    def _drop(self, place: Place) -> None:
        stored = self._stored.pop(place, None)
        if stored is not None:
            self._num_bytes -= stored.num_bytes
