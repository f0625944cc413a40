"""A stream on its way to the client and to the store; the client may already have a part of it."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from cluster.api.connection.body_writer import Write
from cluster.api.requests.call import Call
from cluster.api.responses.generation import Update, run
from cluster.api.responses.resuming.readers import Reader
from cluster.api.responses.resuming.streams import StreamRecord, StreamStore, Told
from cluster.api.service import Service, Shortcut
from engine.outputs import CompletionOutput, RequestOutput
from engine.request import Resume

_END = b"\n\n"  # of an event


class NumberedStream:
    """A stream's updates on their way to the events and to the store, and the events' numbers."""

    def __init__(
        self, service: Service, store: StreamStore, call: Call, record: StreamRecord, num_known: int, reader: Reader
    ) -> None:
        """`reader`: who is told how many events there are."""
        self._service = service
        self._store = store
        self._call = call
        self._record = record
        self._reader = reader
        self._known = record.token_ids[:num_known]
        self._num_tokens = num_known
        self._is_known = num_known > 0  # the events made now are ones that the client has
        self._reader.num_events = record.num_events[num_known] if num_known else 0
        self._num_cached = record.num_cached_tokens if record.token_ids else None
        self._max_tokens: int | None = None

    async def updates(self, shortcut: Shortcut) -> AsyncGenerator[Update, None]:
        """The known tokens at once, then the service's."""
        if self._is_known:
            known = CompletionOutput(0, "", self._known)
            yield Update(
                0, RequestOutput(self._call.id, 0, [], [known], finished=False, fingerprint=self._record.fingerprint)
            )
            self._is_known = False
        async with aclosing(run(self._service, self._rest(), shortcut)) as updates:
            async for index, output in updates:
                if self._record.fingerprint is None:
                    self._record = replace(self._record, fingerprint=output.fingerprint)
                    await self._store.open(self._call.id, self._record)
                if self._num_cached is None:
                    self._num_cached = output.num_cached_tokens
                self._max_tokens = output.max_tokens
                for delta in output.outputs:
                    self._tell(delta.token_ids)
                # As in the first connection: the usage is part of the stream.
                output.num_cached_tokens = self._num_cached
                yield Update(index, output)

    def _tell(self, token_ids: Sequence[int]) -> None:
        """The store, of the next tokens, whose events are not made yet."""
        told = Told(
            self._call.id,
            self._num_tokens,
            list(token_ids),
            self._reader.num_events,
            self._num_cached or 0,
            self._max_tokens,
        )
        self._store.told(told)
        self._num_tokens += len(token_ids)

    def _rest(self) -> Call:
        """The call, from after the known tokens."""
        (request,) = self._call.requests
        resume = Resume(output_ids=[self._known] if self._known else (), fingerprint=self._record.fingerprint)
        return replace(self._call, requests=(replace(request, resume=resume),))

    def number(self, part: bytes) -> Iterator[tuple[int, bytes]]:
        """Each new event of the part, with its id in it."""
        for event in part.split(_END)[:-1] if not self._is_known else ():
            number = self.next_number
            self._reader.num_events = number
            yield number, self.named(number, event + _END)

    @property
    def next_number(self) -> int:
        return self._reader.num_events + 1

    def named(self, number: int, event: bytes) -> bytes:
        """The event with its id; see `NamesEvents`."""
        return b"id: %s:%d\n%s" % (self._call.id.encode(), number, event)

    def add_plain(self, text: str, token_ids: Sequence[int]) -> None:
        """See `Numbered`."""
        self._tell(token_ids)
        if text:
            self._reader.num_events += 1

    def beyond_known(self, write: Write | None) -> Write | None:
        """`write` for the events that the client has not."""
        last = self._reader.last
        if write is None or not last:
            return write
        return lambda data: self._reader.num_events >= last and write(data)
