"""Streams that outlive their connection and their gateway: a client that reconnects gets the rest.

With a stream store, every event of a stream of one choice has an id, `<request id>:<number>`. A
client whose connection broke sends its request again, to any gateway, with the last id it received
as `Last-Event-ID`. It receives the events after it, byte for byte as they would have been: results
are exact, and such a stream has one event per token, never two tokens joined because the client was
slow. So only a few numbers and the tokens so far must be stored; tokens that the store did not get
are computed again.

Each gateway computes a stream for one client at a time, however many ask for it: the newest, since
the connection of the one before may be broken without anybody having noticed. A client that names
an event that may not exist has to get there first (`readers`).
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.requests import Request

from cluster.api.connection.body_writer import Write, offered
from cluster.api.models.model import Model, Models
from cluster.api.requests.call import Call
from cluster.api.responses.generation import Update, run
from cluster.api.responses.plain_events import PlainEvents
from cluster.api.responses.resuming.numbered_stream import NumberedStream
from cluster.api.responses.resuming.readers import Reader, Readers
from cluster.api.responses.resuming.recorded import as_recorded, has_one_choice, is_record_of, new_record, num_known
from cluster.api.responses.resuming.streams import (
    StreamRecord,
    StreamStore,
    parse_event_id,
    resuming,
    unknown_stream,
)

KEY_HEADERS = ("authorization", "x-api-key")  # either may hold the client's key

Events = Callable[[Call, Model, AsyncGenerator[Update, None], PlainEvents], AsyncGenerator[bytes, None]]


class Resumable:
    """The streams of an application; without a store none can be resumed."""

    def __init__(self, models: Models, store: StreamStore | None) -> None:
        self._models = models
        self._store = store
        self._readers = Readers()

    async def events(
        self, request: Request, call: Call, events: Events
    ) -> tuple[AsyncGenerator[bytes, None], Reader | None]:
        """The call's events, or those after the last one that the request names, and the stream's
        reader, if another may take it over; raises ApiError.
        """
        last_event_id = request.headers.get("last-event-id")
        if self._store is None or not has_one_choice(call):
            if last_event_id is not None:
                why = "it has several choices or prompts" if self._store else "this server runs without stream_resume"
                raise unknown_stream(last_event_id, why)
            plain = PlainEvents(offered(request.scope))
            model, service, *_ = self._models[call.served_by]
            return events(call, model, run(service, call, plain), plain), None
        key = "\n".join(request.headers.get(name, "") for name in KEY_HEADERS)
        if last_event_id is None:
            record = new_record(call, key)
            await self._store.open(call.id, record)
            return self._read(request, as_recorded(call, call.id, record), events, record, 0)
        request_id, number = parse_event_id(last_event_id)
        found = await self._store.find(request_id)
        if found is None or not is_record_of(found, call, key):
            raise unknown_stream(last_event_id)
        return self._read(request, as_recorded(call, request_id, found), events, found, number)

    def _read(
        self, request: Request, call: Call, events: Events, record: StreamRecord, last: int
    ) -> tuple[AsyncGenerator[bytes, None], Reader]:
        reader = Reader(last)
        return self._numbered(call, events, record, reader, offered(request.scope)), reader

    async def _numbered(
        self, call: Call, events: Events, record: StreamRecord, reader: Reader, write: Write | None
    ) -> AsyncGenerator[bytes, None]:
        """The events after the reader's last one, with their ids."""
        assert self._store is not None
        last = reader.last
        self._readers.begin(call.id, reader, record.num_events[-1] if record.num_events else 0)
        model, service, *_ = self._models[call.served_by]
        stream = NumberedStream(service, self._store, call, record, num_known(call, record, last), reader)
        plain = PlainEvents(stream.beyond_known(write), stream)
        try:
            made = aclosing(events(call, model, stream.updates(plain), plain))
            async with resuming(last), made as parts:
                async for part in parts:
                    told = b"".join(event for number, event in stream.number(part) if number > last)
                    self._readers.made(call.id, reader)
                    if told:
                        yield told
            if last > reader.num_events:
                raise unknown_stream(f"{call.id}:{last}", f"it has {reader.num_events} events")
        finally:
            if self._readers.end(call.id, reader):
                self._store.close(call.id)
