"""The stored responses, bounded in number, bytes and age; the oldest are dropped, and cannot be
retrieved.
"""

from collections import OrderedDict
from typing import NamedTuple

MAX_COUNT = 16_384
MAX_BYTES = 128 << 20
RECORD_BYTES = 512  # of one in memory, beside its own


class _Stored(NamedTuple):
    record: bytes
    until: float


class ResponseRecords:
    """By owner and id, the oldest first. `now` is of any monotonic clock."""

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._stored: OrderedDict[tuple[bytes, str], _Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def keep(self, owner: bytes, response_id: str, record: bytes, until: float) -> None:
        self.forget(owner, response_id)
        self._stored[owner, response_id] = _Stored(record, until)
        self._num_bytes += len(record) + RECORD_BYTES
        while len(self._stored) > self._max_count or self._num_bytes > self._max_bytes:
            self.forget(*next(iter(self._stored)))

    def find(self, owner: bytes, response_id: str, now: float) -> bytes | None:
        stored = self._stored.get((owner, response_id))
        return None if stored is None or stored.until <= now else stored.record

    def forget(self, owner: bytes, response_id: str) -> bool:
        """Whether it was there."""
        stored = self._stored.pop((owner, response_id), None)
        if stored is not None:
            self._num_bytes -= len(stored.record) + RECORD_BYTES
        return stored is not None

    def sweep(self, now: float) -> None:
        """Drop what is too old."""
        for place in [place for place, stored in self._stored.items() if stored.until <= now]:
            self.forget(*place)
