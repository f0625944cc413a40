"""What a shard of the store is told, and that a failure does not hold up the streams after it."""

import asyncio

from cluster.api.responses.resuming.streams import StreamRecord
from cluster.gateway.streams.records.store_changes import StoreChanges
from cluster.gateway.streams.stream_writer import StreamWriter

SECONDS = 120  # more than anything here takes


class Shard:
    """`StoreCalls` that fail unforeseen as often as they are told to."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.opened: list[str] = []

    def wake(self) -> None: ...

    async def write(self, changes: StoreChanges) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("unforeseen")
        self.opened += changes.opened


async def test_streams_begin_after_a_write_that_failed() -> None:
    shard = Shard(num_failures=1)
    writer = StreamWriter(shard, batch_seconds=0.0)  # type: ignore[arg-type]
    async with asyncio.timeout(SECONDS):
        await writer.open("lost", StreamRecord(b"who", 5, 7))
        await writer.open("stored", StreamRecord(b"who", 5, 7))
    assert shard.opened == ["stored"]
    writer._writing.cancel()
