"""All that one actor of the store holds."""

from collections.abc import Iterator

from cluster.gateway.streams.records.response_records import ResponseRecords
from cluster.gateway.streams.records.store_changes import StoreChanges
from cluster.gateway.streams.records.stream_records import StreamRecords


class StoreRecords:
    """Streams and responses. `now` is of any monotonic clock."""

    def __init__(self) -> None:
        self.streams = StreamRecords()
        self.responses = ResponseRecords()

    def __bool__(self) -> bool:
        return bool(self.streams or self.responses)

    def write(self, changes: StoreChanges, now: float) -> None:
        self.streams.write(changes, now)
        self.responses.write(changes, now)

    def everything(self, now: float) -> Iterator[StoreChanges]:
        """For another copy. Each part is made when it is asked for, of what is stored then."""
        yield from self.streams.everything(now)
        yield from self.responses.everything(now)

    def sweep(self, now: float) -> None:
        """Drop what is too old."""
        self.streams.sweep(now)
        self.responses.sweep(now)
