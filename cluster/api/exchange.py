"""A request to the application from within its process, without a connection: what is sent comes
out as it would on the wire.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

logger = logging.getLogger("squadron.api")

EVENTS = "text/event-stream"
_END = b"\n\n"  # of an event
_DATA = b"data: "
_DONE = b"[DONE]"

Answer = tuple[int, dict[str, str], bytes]  # status, headers by lower-case names, body


@dataclass(frozen=True, slots=True)
class Exchange:
    """A POST of JSON."""

    app: ASGIApp
    path: str
    body: bytes
    headers: Mapping[str, str]
    extensions: Mapping[str, Any] = field(default_factory=dict)  # of the request's scope

    async def whole(self) -> Answer:
        """The answer as it would come over a connection."""
        status, headers, body = 500, dict[str, str](), b""
        async with aclosing(self._messages()) as messages:
            async for message in messages:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
                body += message.get("body", b"")
        return status, headers, body

    async def texts(self) -> AsyncGenerator[bytes, None]:
        """The JSON texts of the answer, one if it is whole, of a stream each event's. A stream that
        fails ends with an error's. Closing it is the client's disconnecting.
        """
        is_stream, pending = False, b""
        async with aclosing(self._messages()) as messages:
            async for message in messages:
                if message["type"] == "http.response.start":
                    is_stream = _media_type(message) == EVENTS
                pending += message.get("body", b"")
                *events, pending = pending.split(_END) if is_stream else [pending]
                for data in map(_data, events):
                    if data not in (b"", _DONE):
                        yield data
        if pending and not is_stream:
            yield pending

    async def _messages(self) -> AsyncGenerator[Message, None]:
        """What the application sends; it waits until the reader has taken the last one."""
        sent: asyncio.Queue[Message | None] = asyncio.Queue(maxsize=1)
        task = asyncio.create_task(self._run(sent))
        try:
            while (message := await sent.get()) is not None:
                yield message
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, sent: "asyncio.Queue[Message | None]") -> None:
        bodies = [self.body]

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await asyncio.Event().wait()  # a caller that leaves cancels this
            raise AssertionError

        try:
            await self.app(self._scope(), receive, sent.put)
        except Exception:
            logger.exception("%s failed", self.path)  # its answer says so
        await sent.put(None)

    def _scope(self) -> dict[str, Any]:
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers |= {"host": "handle", "content-type": "application/json", "content-length": str(len(self.body))}
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(errors="replace"),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            "client": None,
            "server": None,
            "extensions": dict(self.extensions),
        }


def _media_type(start: Message) -> str:
    for name, value in start["headers"]:
        if name == b"content-type":
            return str(value.decode("latin-1").partition(";")[0])
    return ""


def _data(event: bytes) -> bytes:
    return b"".join(line.removeprefix(_DATA) for line in event.split(b"\n") if line.startswith(_DATA))
