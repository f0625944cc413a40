"""Server-sent events, and what happens when either end disconnects."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.api.connection.disconnect import or_as_gone, unless_disconnected
from cluster.api.errors import FORESEEN, as_api_error, error_body
from cluster.api.responses.resuming.readers import Reader, taken_over
from cluster.api.scopes import speaks_anthropic

DONE = b"data: [DONE]\n\n"
# JSON may contain these unescaped, but clients that split lines by Unicode's rules would break
# there.
_LINE_ENDS = {b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029", b"\xc2\x85": rb"\u0085"}


def event(chunk: msgspec.Struct) -> bytes:
    return frame(msgspec.json.encode(chunk))


def named_event(chunk: msgspec.Struct) -> bytes:
    """With its tag as the event's name, on a line of its own, as some APIs have it."""
    return b"event: %s\n%s" % (str(chunk.__struct_config__.tag).encode(), event(chunk))


def frame(data: bytes) -> bytes:
    """The event whose data is this JSON text."""
    return b"data: " + escape_line_ends(data) + b"\n\n"


def escape_line_ends(data: bytes) -> bytes:
    """JSON text without the characters that some readers take for the end of a line."""
    if not data.isascii():
        for character, escaped in _LINE_ENDS.items():
            data = data.replace(character, escaped)
    return data


class EventStream(Response):
    """Sends events as they come. Nothing is sent before the first one, so that earlier failures
    have their own status. A later failure is sent as an event, and the connection is aborted: a
    clean end would look like success. The generator is closed when the client disconnects, or when
    another one has taken the stream over.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str], reader: Reader | None = None
    ) -> None:
        """`reader`: None if no other client can take the stream over."""
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        self._events = events
        self._reader = reader
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._reader is not None:
            receive = or_as_gone(receive, self._reader)
        try:
            await unless_disconnected(receive, self._send(send, scope))
        except ClientDisconnect:
            if self._reader is None or not self._reader.is_set():
                return
            if not self._has_begun:
                raise taken_over() from None
            await self._fail(send, scope, taken_over())

    async def _send(self, send: Send, scope: Scope) -> None:
        async with aclosing(self._events) as events:
            data = await anext(events, b"")  # empty for a client that resumes after the last event
            self._has_begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": True})
            try:
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except Exception as error:
                await self._fail(send, scope, error)
                if isinstance(error, FORESEEN):
                    return  # without the message that ends the body: the server closes the connection
                raise  # closes it too, and logs the traceback
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, send: Send, scope: Scope, error: Exception) -> None:
        name = b"event: error\n" if speaks_anthropic(scope) else b""
        data = name + frame(error_body(as_api_error(error), scope))
        await send({"type": "http.response.body", "body": data, "more_body": True})
