"""A gateway's way to the stored streams that clients may resume (see
`cluster/api/responses/resuming/resume`).
"""

from cluster.api.responses.resuming.streams import StreamRecord, Told
from cluster.gateway.streams.shard import number_of
from cluster.gateway.streams.store_shards import StoreShards
from cluster.gateway.streams.stream_writer import StreamWriter

BATCH_SECONDS = 0.1  # between two writes of tokens, to whichever shard
MOST_BATCH_SECONDS = 1.0  # to the same one


class StreamStoreClient:
    """A `StreamStore`. Lives in one event loop."""

    def __init__(self, app_name: str, num_shards: int) -> None:
        self._shards = StoreShards(app_name, num_shards)
        # As many writes a second as to one shard: a write costs far more than a token in it.
        seconds = min(BATCH_SECONDS * num_shards, MOST_BATCH_SECONDS)
        self._writers = [StreamWriter(shard, seconds) for shard in self._shards.own]  # none waits for another

    async def open(self, request_id: str, record: StreamRecord) -> None:
        await self._writer_of(request_id).open(request_id, record)

    def told(self, told: Told) -> None:
        self._writer_of(told.request_id).told(told)

    def close(self, request_id: str) -> None:
        self._writer_of(request_id).close(request_id)

    async def find(self, request_id: str) -> StreamRecord | None:
        found = await self._shards.find("find_stream", request_id, request_id)
        record: StreamRecord | None = found.record
        if record is not None and found.is_elsewhere:
            self._writer_of(request_id).adopt(request_id, record)  # what it is told next goes there
        return record

    def _writer_of(self, request_id: str) -> StreamWriter:
        return self._writers[number_of(request_id, len(self._writers))]
