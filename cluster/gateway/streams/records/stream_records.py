"""The stored streams, bounded in bytes and in age; what is dropped cannot be resumed."""

from collections import OrderedDict
from collections.abc import Iterator

from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.records.store_changes import StoreChanges

MAX_BYTES = 64 << 20
TOKEN_BYTES, RECORD_BYTES = 72, 1024  # their approximate size in memory
OPEN_SECONDS, CLOSED_SECONDS = 3600.0, 120.0  # without news: for streams that are being read, and for others
NUM_AT_ONCE = 16  # streams that another copy is told of


class StreamRecords:
    """The stored streams, least recently written first. `now` is of any monotonic clock."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._records: OrderedDict[str, StreamRecord] = OrderedDict()
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._records)

    def write(self, changes: StoreChanges, now: float) -> None:
        for request_id, record in changes.opened.items():
            self._open(request_id, record, now)
        for told in changes.told:
            self._tell(told, now)
        for request_id in changes.closed:
            if request_id in self._until:
                self._until[request_id] = now + CLOSED_SECONDS
        while self._num_bytes > self._max_bytes:
            self._forget(next(iter(self._records)))

    def find(self, request_id: str, now: float) -> StreamRecord | None:
        return self._records.get(request_id) if self._until.get(request_id, now) > now else None

    def everything(self, now: float) -> Iterator[StoreChanges]:
        """For another copy. Each part is made when it is asked for, of what is stored then."""
        request_ids = list(self._records)
        for first in range(0, len(request_ids), NUM_AT_ONCE):
            some = request_ids[first : first + NUM_AT_ONCE]
            there = {each: self._records[each] for each in some if each in self._records}
            yield StoreChanges(
                opened=there, closed=[each for each in there if self._until[each] <= now + CLOSED_SECONDS]
            )

    def sweep(self, now: float) -> None:
        """Drop what is too old."""
        for request_id in [request_id for request_id, until in self._until.items() if until <= now]:
            self._forget(request_id)

    def _open(self, request_id: str, record: StreamRecord, now: float) -> None:
        """Store it, unless more of the stream is known already."""
        known = self._records.get(request_id)
        if known is not None and _progress(known) > _progress(record):
            return
        self._forget(request_id)
        self._records[request_id] = record
        self._num_bytes += _size(record)
        self._until[request_id] = now + OPEN_SECONDS

    def _tell(self, told: Told, now: float) -> None:
        """Append tokens that continue the stored ones; two gateways that write the same stream
        write the same.
        """
        record = self._records.get(told.request_id)
        if record is None or told.first_index > len(record.token_ids):
            return
        before = len(record.token_ids)
        if before == 0:
            record.num_cached_tokens, record.max_tokens = told.num_cached_tokens, told.max_tokens
        new = told.token_ids[before - told.first_index :]
        record.token_ids += new
        record.num_events += [told.num_events] * len(new)
        self._num_bytes += len(new) * TOKEN_BYTES
        self._records.move_to_end(told.request_id)
        self._until[told.request_id] = now + OPEN_SECONDS

    def _forget(self, request_id: str) -> None:
        record = self._records.pop(request_id, None)
        if record is not None:
            self._num_bytes -= _size(record)
            del self._until[request_id]


def _size(record: StreamRecord) -> int:
    return RECORD_BYTES + TOKEN_BYTES * len(record.token_ids)


def _progress(record: StreamRecord) -> tuple[bool, int]:
    return record.fingerprint is not None, len(record.token_ids)
