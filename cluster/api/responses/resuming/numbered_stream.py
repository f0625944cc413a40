"""A stream on its way to the client and to the store; the client may already have a part of it."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace

from cluster.api.requests.call import Call
from cluster.api.responses.generation import Update, run
from cluster.api.responses.resuming.streams import StreamRecord, StreamStore, Told
from cluster.api.service import Service
from engine.outputs import CompletionOutput, RequestOutput
from engine.request import Resume

_END = b"\n\n"  # of an event


class NumberedStream:
    """A stream's updates on their way to the events and to the store, and the events' numbers."""

    def __init__(self, service: Service, store: StreamStore, call: Call, record: StreamRecord, num_known: int) -> None:
        self._service = service
        self._store = store
        self._call = call
        self._record = record
        self._known = record.token_ids[:num_known]
        self._is_known = num_known > 0  # the events made now are ones that the client has
        self.num_events = record.num_events[num_known] if num_known else 0
        self._num_cached = record.num_cached_tokens if record.token_ids else None

    async def updates(self) -> AsyncGenerator[Update, None]:
        """The known tokens at once, then the service's."""
        if self._is_known:
            known = CompletionOutput(0, "", self._known)
            yield Update(
                0, RequestOutput(self._call.id, 0, [], [known], finished=False, fingerprint=self._record.fingerprint)
            )
            self._is_known = False
        async with aclosing(run(self._service, self._rest())) as updates:
            async for index, output in updates:
                if self._record.fingerprint is None:
                    self._record = replace(self._record, fingerprint=output.fingerprint)
                    await self._store.open(self._call.id, self._record)
                if self._num_cached is None:
                    self._num_cached = output.num_cached_tokens
                for delta in output.outputs:
                    told = (delta.first_index, delta.token_ids, self.num_events, self._num_cached, output.max_tokens)
                    self._store.told(Told(self._call.id, *told))
                # As in the first connection: the usage is part of the stream.
                output.num_cached_tokens = self._num_cached
                yield Update(index, output)

    def _rest(self) -> Call:
        """The call, from after the known tokens."""
        (request,) = self._call.requests
        resume = Resume(output_ids=[self._known] if self._known else (), fingerprint=self._record.fingerprint)
        return replace(self._call, requests=(replace(request, resume=resume),))

    def number(self, part: bytes) -> Iterator[tuple[int, bytes]]:
        """Each new event of the part, with its id in it."""
        for event in part.split(_END)[:-1] if not self._is_known else ():
            self.num_events += 1
            yield self.num_events, b"id: %s:%d\n%s%s" % (self._call.id.encode(), self.num_events, event, _END)
