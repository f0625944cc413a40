"""One HTTP connection of Serve's proxy: uvicorn's, with limits on how long a client may take to
send a request, and on how many connections may wait for their clients.

uvicorn waits forever for the head of a request (request line and headers), and hands the connection
to another protocol if the head offers one: it drops the body of a POST with `Upgrade: h2c`, which
Java's HttpClient and `curl --http2` send, and never answers one with `Upgrade: websocket`. A server
may ignore such an offer (RFC 9110, 7.8), and this one does.
"""

import asyncio
import resource
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from cluster.api.edge.unread import UnreadLimit
from cluster.api.errors import ApiError, error_body
from cluster.headers.addressee import SERVER

HEAD_SECONDS = 10.0
MAX_HEAD_BYTES = 256 << 10  # before it is complete; whole ones have their limit in `middleware`
MAX_WAITING = 4096
RETRY_AFTER = 2.0  # seconds
_SERVER = SERVER.encode()


def default_max_waiting() -> int:
    """Limit of connections that wait for their clients: half of the files that the process may
    open.
    """
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_WAITING if num_files == resource.RLIM_INFINITY else min(MAX_WAITING, num_files // 2)


class Connection(UnreadLimit):
    """A request's head has `head_seconds`, from the connection or its own first bytes on; then the
    connection is closed.

    Between two requests uvicorn's own limit applies (`keep_alive_timeout_s`), and after a head the
    application's limits. A request that HAProxy means for another process gets no answer
    (`cluster.headers.addressee`). If more than `max_waiting` connections have no complete request,
    the oldest is closed: more would cost time and memory, and in the end the process would have no
    files left.
    """

    head_seconds = HEAD_SECONDS
    max_waiting = default_max_waiting()
    server_name: ClassVar[bytes | None] = None  # this process', to HAProxy; None: there is none before it
    # By server: its connections without a complete request, those that have waited longest first.
    _waiting_of: ClassVar[WeakKeyDictionary[ServerState, dict["Connection", None]]] = WeakKeyDictionary()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock: asyncio.TimerHandle | None = None  # of the head that is awaited
        self._is_in_head = False
        self._num_head_bytes = 0  # of the head that is not complete yet
        self._waiting = self._waiting_of.setdefault(self.server_state, {})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_clock()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._clock is None and not self._is_answering():
            self._start_clock()
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except HttpParserError:
            if not self.transport.is_closing():  # otherwise the request is for another process
                self.send_400_response("This is not a request of HTTP/1.1")
        else:
            self._limit_head(len(data))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._num_head_bytes = 0

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():  # otherwise the same head is parsed again
            self._is_in_head = False
            self._stop_clock()
            if self._is_for_another():
                self.transport.close()
                raise ConnectionAbortedError("this is not the server that HAProxy means")  # ends the parsing
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            if self._is_answering():
                self._waiting.pop(self, None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering() and not self.transport.is_closing():
            self._wait()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _limit_head(self, num_bytes: int) -> None:
        """The parser has taken so many bytes: refuse a head that only grows, before it is whole."""
        if self._is_in_head and not self.transport.is_closing():
            self._num_head_bytes += num_bytes
            if self._num_head_bytes > MAX_HEAD_BYTES:
                message = f"The request's head has more than {MAX_HEAD_BYTES} bytes"
                self._refuse(ApiError(431, message, code="headers_too_large"))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the head again without its offer, the only way to make the parser ignore it. `rest`
        is the data after it.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(ApiError(405, "This is not a proxy", code="method_not_supported"))
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    def _wait(self) -> None:
        """Start waiting for a request, or the rest of one."""
        self._waiting.setdefault(self)
        if len(self._waiting) > self.max_waiting:
            next(iter(self._waiting))._crowd_out()

    def _crowd_out(self) -> None:
        del self._waiting[self]
        if self._is_in_head:
            message = f"{self.max_waiting} other connections wait for their clients as well"
            self._refuse(ApiError(503, message, code="server_overloaded", retry_after=RETRY_AFTER))
        else:
            self.transport.close()

    def _is_for_another(self) -> bool:
        """Of the request whose head has been read."""
        if self.server_name is None:
            return False
        return any(name == _SERVER and value != self.server_name for name, value in self.headers)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_clock(self) -> None:
        # In two halves: when a stopped process continues, timers may fire before data received
        # meanwhile is read.
        self._clock = self.loop.call_later(self.head_seconds / 2, self._half_time)

    def _half_time(self) -> None:
        self._clock = self.loop.call_later(self.head_seconds / 2, self._end_of_time)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _end_of_time(self) -> None:
        if self._is_in_head:
            message = f"The request's headers did not come within {self.head_seconds:g} s"
            self._refuse(ApiError(408, message, code="request_timeout"))
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answer an invalid request, and close the connection; a running answer is cut off."""
        body = error_body(error)
        head = [STATUS_LINE[error.status], *(b"%b: %b\r\n" % header for header in self.server_state.default_headers)]
        head += [f"{name}: {value}\r\n".encode() for name, value in error.headers.items()]
        head += [b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)]
        if not self._is_answering():
            self.transport.write(b"".join([*head, body]))
        self.transport.close()
