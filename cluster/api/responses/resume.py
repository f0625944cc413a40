"""Streams that outlive their connection and their gateway: a client that reconnects gets the rest.

With a stream store, every event of a stream of one choice has an id, `<request id>:<number>`. A
client whose connection broke sends its request again, to any gateway, with the last id it received
as `Last-Event-ID`. It receives the events after it, byte for byte as they would have been: results
are exact, and such a stream has one event per token, never two tokens joined because the client was
slow. So only a few numbers and the tokens so far must be stored; tokens that the store did not get
are computed again.
"""

import hashlib
import hmac
import re
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import msgspec
from starlette.requests import Request

from cluster.api.body_writer import offered
from cluster.api.errors import ApiError
from cluster.api.model import Model
from cluster.api.requests.call import Call
from cluster.api.requests.fields import as_brief_json
from cluster.api.responses.generation import Update, run
from cluster.api.responses.numbered_stream import NumberedStream
from cluster.api.responses.plain_events import PlainEvents
from cluster.api.responses.streams import StreamRecord, StreamStore
from cluster.api.service import Service

_EVENT_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

Events = Callable[[Call, Model, AsyncGenerator[Update, None], PlainEvents], AsyncGenerator[bytes, None]]


class Resumable:
    """The streams of an application; without a store none can be resumed."""

    def __init__(self, service: Service, model: Model, store: StreamStore | None) -> None:
        self._service = service
        self._model = model
        self._store = store

    async def events(self, request: Request, call: Call, events: Events) -> AsyncGenerator[bytes, None]:
        """The call's events, or those after the last one that the request names; raises
        ApiError.
        """
        last_event_id = request.headers.get("last-event-id")
        if self._store is None or not _has_one_choice(call):
            if last_event_id is not None:
                why = "it has several choices or prompts" if self._store else "this server runs without stream_resume"
                raise _unknown_stream(last_event_id, why)
            plain = PlainEvents(offered(request.scope))
            return events(call, self._model, run(self._service, call, plain), plain)
        digest = _digest(call, request.headers.get("authorization", ""))
        if last_event_id is None:
            record = StreamRecord(digest, call.created, call.params.seed)
            if record.seed is None:
                record.seed = secrets.randbits(63)
            await self._store.open(call.id, record)
            return self._numbered(_as_recorded(call, call.id, record), events, record, 0)
        request_id, _, number = last_event_id.rpartition(":")
        found = await self._store.find(request_id) if _EVENT_NUMBER.fullmatch(number) else None
        if found is None or found.fingerprint is None or not hmac.compare_digest(found.request, digest):
            raise _unknown_stream(last_event_id)
        return self._numbered(_as_recorded(call, request_id, found), events, found, int(number))

    async def _numbered(
        self, call: Call, events: Events, record: StreamRecord, last: int
    ) -> AsyncGenerator[bytes, None]:
        """The events after number `last`, with their ids."""
        assert self._store is not None
        stream = NumberedStream(self._service, self._store, call, record, _num_known(call, record, last))
        try:
            async with aclosing(events(call, self._model, stream.updates(), PlainEvents(None))) as parts:
                async for part in parts:
                    told = b"".join(event for number, event in stream.number(part) if number > last)
                    if told:
                        yield told
            if last > stream.num_events:
                raise _unknown_stream(f"{call.id}:{last}", f"it has {stream.num_events} events")
        finally:
            self._store.close(call.id)


def _has_one_choice(call: Call) -> bool:
    """The order of several choices' events depends on other requests."""
    return len(call.requests) == 1 and call.params.num_samples == 1 and call.params.beam_width is None


def _digest(call: Call, key: str) -> bytes:
    return hashlib.sha256(msgspec.json.encode([call.kind, call.digest, key])).digest()


def _unknown_stream(last_event_id: str, why: str = "it is unknown or has expired") -> ApiError:
    return ApiError(
        404,
        f"No stream of this request with the event {as_brief_json(last_event_id)} can be resumed: {why}",
        code="unknown_stream",
        param="Last-Event-ID",
    )


def _as_recorded(call: Call, request_id: str, record: StreamRecord) -> Call:
    params = replace(call.params, seed=record.seed, max_tokens=record.max_tokens or call.params.max_tokens)
    request = replace(call.requests[0], id=request_id, params=params, joins_deltas=False)
    return replace(call, requests=(request,), id=request_id, created=record.created)


def _num_known(call: Call, record: StreamRecord, last: int) -> int:
    """How many tokens need not be computed again: those whose events the client has all
    received.
    """
    if call.params.logprobs is not None or call.echo or not call.form.is_plain:
        return 0  # such events depend on the events before them
    reached = bisect_right(record.num_events, last)
    return bisect_left(record.num_events, record.num_events[reached - 1]) if reached else 0
