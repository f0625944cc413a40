"""The bodies of requests, from their first byte until they are parsed, with limits on size, time
and number.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import Request

from cluster.api.arrivals import MAX_DIGITS
from cluster.api.connection.disconnect import unless_disconnected
from cluster.api.errors import ApiError
from cluster.api.requests.parse import SMALL_BODY
from engine.errors import Overloaded

MAX_BYTES = 32 << 20
MAX_HELD_BYTES = 256 << 20
SECONDS = 60.0

Read = TypeVar("Read")  # what is made of a body


class Bodies:
    """Receives bodies and has them parsed. Large ones are parsed one at a time; their total memory
    is bounded, and one whose client has disconnected is not parsed.
    """

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, max_held_bytes: int = MAX_HELD_BYTES, seconds: float = SECONDS
    ) -> None:
        """`max_bytes` of one, `max_held_bytes` of all large ones together; a body has so many
        seconds to arrive.
        """
        self._max_bytes = max_bytes
        self._max_held_bytes = max_held_bytes
        self._seconds = seconds
        self._num_held_bytes = 0

    async def read(self, request: Request, parse: Callable[[bytes], Coroutine[Any, Any, Read]]) -> Read:
        """What `parse` makes of the request's body, which says that it is JSON. Raises ApiError,
        Overloaded, ClientDisconnect.
        """
        _check_headers(request)
        with self._hold() as hold:
            body = await self._receive(request, hold)
            if len(body) <= SMALL_BODY:
                return await parse(body)
            return await unless_disconnected(request.receive, parse(body))

    async def _receive(self, request: Request, hold: Callable[[int], None]) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._join(request, hold)
        except TimeoutError:
            message = f"The body was not complete after {self._seconds:g} seconds"
            raise ApiError(408, message, code="request_timeout", headers={"connection": "close"}) from None

    async def _join(self, request: Request, hold: Callable[[int], None]) -> bytes:
        length = request.headers.get("content-length", "")
        body = bytearray()
        if not (length.isdecimal() and int(length[:MAX_DIGITS]) > self._max_bytes):
            async for chunk in request.stream():
                body += chunk
                if len(body) > self._max_bytes:
                    break
                hold(len(body))
            else:
                return bytes(body)
        raise ApiError(413, f"The body has more than {self._max_bytes} bytes", code="request_too_large")

    @contextmanager
    def _hold(self) -> Iterator[Callable[[int], None]]:
        """A function to be called with a body's bytes so far; they are released at the end."""
        num_bytes = 0

        def hold(total: int) -> None:
            nonlocal num_bytes
            if total <= SMALL_BODY:
                return
            if self._num_held_bytes + total - num_bytes > self._max_held_bytes:
                raise Overloaded(f"large requests of {self._num_held_bytes >> 20} MiB are being read already")
            self._num_held_bytes += total - num_bytes
            num_bytes = total

        try:
            yield hold
        finally:
            self._num_held_bytes -= num_bytes


def _check_headers(request: Request) -> None:
    media_type, *parameters = (part.strip().lower() for part in request.headers.get("content-type", "").split(";"))
    charsets = [part.removeprefix("charset=").strip('"') for part in parameters if part.startswith("charset=")]
    if media_type != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise ApiError(415, "The content-type must be application/json, in UTF-8", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "The body must not be compressed", code="unsupported_content_encoding")
