"""What is stored of streams that clients may resume, and the store; how a client names an event,
and what that opens.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request

from cluster.api.arrivals import asks_for_rest, estimated_load, is_let_in
from cluster.api.errors import ApiError
from cluster.api.requests.fields import as_brief_json
from cluster.api.service import Application
from engine.errors import FINGERPRINT_CHANGED, FingerprintChanged, Overloaded
from engine.request import NO_KEY, Adapter, Share

_EVENT_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(slots=True)
class StreamRecord:
    """What is stored of a stream."""

    request: bytes  # SHA-256 of request and key: a client that reconnects must send the same
    created: int
    seed: int | None
    adapter: Adapter | None = None  # since another one may have its name now
    num_cached_tokens: int = 0
    max_tokens: int | None = None  # as fixed with the first token
    token_ids: list[int] = field(default_factory=list)
    num_events: list[int] = field(default_factory=list)  # for each token, the number of events before it
    fingerprint: str | None = None  # of the engine that it came from: stored before its first event is sent


@dataclass(frozen=True, slots=True)
class Told:
    """A stream's tokens from number `first_index` on, which come after `num_events` events."""

    request_id: str
    first_index: int
    token_ids: list[int]
    num_events: int
    num_cached_tokens: int  # of the prompt
    max_tokens: int | None


class StreamStore(Protocol):
    """Stores streams for all gateways; what it drops, or gets too late, costs time or a 404, never
    a wrong byte.
    """

    async def open(self, request_id: str, record: StreamRecord) -> None:
        """Store a stream from now on, beginning with the record."""

    def told(self, told: Told) -> None:
        """Append tokens to a stream."""

    def close(self, request_id: str) -> None:
        """The stream is no longer read; it can be resumed for a while."""

    async def find(self, request_id: str) -> StreamRecord | None:
        """The stream, if it is still stored; raises ApiError if the store does not answer."""


def parse_event_id(text: str) -> tuple[str, int]:
    """The request's id and the event's number; raises ApiError."""
    request_id, _, number = text.rpartition(":")
    if not _EVENT_NUMBER.fullmatch(number):
        raise unknown_stream(text)
    return request_id, int(number)


def unknown_stream(last_event_id: str, why: str = "it is unknown or has expired") -> ApiError:
    return ApiError(
        404,
        f"No stream of this request with the event {as_brief_json(last_event_id)} can be resumed: {why}",
        code="unknown_stream",
        param="Last-Event-ID",
    )


@asynccontextmanager
async def resuming(last: int) -> AsyncIterator[None]:
    """Where a stream's events after number `last` are made. If no engine can go on with one that
    was begun before, and none will, raises ApiError: not a 503, since the request would fail again
    as it is.
    """
    try:
        yield
    except FingerprintChanged as error:
        if not last or not error.is_final:
            raise
        raise ApiError(
            409,
            "The rest of this stream cannot be computed: the engines have other weights than those of its tokens, or "
            f"compute otherwise; send the request again without Last-Event-ID ({error})",
            code=FINGERPRINT_CHANGED,
            param="Last-Event-ID",
            headers={"x-should-retry": "false"},
        ) from None


class LetIn:
    """Whether a request may come in before its body is read: there is room, or it asks for the rest
    of a stream that was let in before. Of one application.
    """

    def __init__(self, application: Application, max_model_len: int, streams: StreamStore | None) -> None:
        """`streams`: those that may be resumed."""
        self._application = application
        self._max_model_len = max_model_len
        self._streams = streams

    async def check(self, request: Request, seconds: float | None, share: Share) -> bool:
        """Whether the request is new, and does not ask for the rest of a stream. Raises ApiError or
        Overloaded.
        """
        if self._streams is None or not asks_for_rest(request.scope):
            if not is_let_in():
                self.check_room(request, seconds, share)
            return True
        try:
            self.check_room(request, seconds, share)
        except (Overloaded, ApiError):
            last_event_id = request.headers["last-event-id"]
            request_id, _ = parse_event_id(last_event_id)
            if await self._streams.find(request_id) is None:
                raise unknown_stream(last_event_id) from None
        return False

    def check_room(self, request: Request, seconds: float | None = None, share: Share = NO_KEY) -> None:
        """Raises ApiError or Overloaded."""
        load = estimated_load(request.headers, self._max_model_len)
        self._application.check_room(load, seconds, share=share)
