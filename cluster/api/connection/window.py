"""How much of an answer may be on its way from a gateway to the client of a proxy of Serve's.

Between the two Serve and Ray hold what the client has not taken, and bound nothing: they would hold
a whole answer. So the proxy tells the gateway how much it has written, by an ASGI message of ours
among those that the client sends, and the gateway waits while the difference is more than a window.
"""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Message, Receive, Scope, Send

WINDOW = "squadron.window"  # the message's type; and among a scope's `extensions`: the proxy sends such messages
WINDOW_BYTES = 256 << 10
UPDATE_BYTES = 64 << 10  # written since the proxy told it last
MESSAGE_BYTES = 1 << 10  # that a part of an answer counts beside its body: what is held with it


class WindowUpdates:
    """ASGI middleware of a proxy, the innermost."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        writing = _Writing(receive, send)
        try:
            extensions = {**scope.get("extensions", {}), WINDOW: {}}
            await self._app({**scope, "extensions": extensions}, writing.receive, writing.send)
        finally:
            writing.end()


class WithinWindow:
    """ASGI middleware of a gateway. Without a proxy that tells, answers wait for nothing here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if WINDOW not in scope.get("extensions", {}):
            await self._app(scope, receive, send)
            return
        sending = _Sending(receive, send)
        try:
            await self._app(scope, sending.receive, sending.send)
        finally:
            sending.end()


class _Writing:
    """An answer at the proxy's end."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._receiving: asyncio.Future[Message] | None = None  # the client's next message
        self._num_written = 0
        self._num_told = 0
        self._is_due = asyncio.Event()

    async def send(self, message: Message) -> None:
        await self._send(message)  # waits for a client that reads too slowly
        self._num_written += _size(message)
        if self._num_written - self._num_told >= UPDATE_BYTES:
            self._is_due.set()

    async def receive(self) -> Message:
        """The client's next message, or ours."""
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self._receive())
        due = asyncio.ensure_future(self._is_due.wait())
        try:
            await asyncio.wait((self._receiving, due), return_when=asyncio.FIRST_COMPLETED)
        finally:
            due.cancel()
        if self._receiving.done():
            message, self._receiving = self._receiving.result(), None
            return message
        self._is_due.clear()
        self._num_told = self._num_written
        return {"type": WINDOW, "num_written": self._num_told}

    def end(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()


class _Sending:
    """An answer at the gateway's end."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._received = deque[Message | Exception]()  # that the application has not asked for
        self._taking: asyncio.Task[None] | None = None
        self._num_sent = 0
        self._num_written = 0
        self._is_told_nothing = False  # any more: the client has gone, or the proxy

    async def send(self, message: Message) -> None:
        while self._num_sent - self._num_written > WINDOW_BYTES and not self._is_told_nothing:
            await self._take_one()
        self._num_sent += _size(message)
        await self._send(message)

    async def receive(self) -> Message:
        """The client's next message."""
        while not self._received:
            await self._take_one()
        message = self._received.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    async def _take_one(self) -> None:
        """Take the proxy's next message, or wait until it is taken for another: whoever sends may
        wait beside whoever receives.
        """
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(self._take())
        await asyncio.wait((self._taking,))

    async def _take(self) -> None:
        try:
            message = await self._receive()
        except Exception as error:  # Serve's, which it raises once
            self._is_told_nothing = True
            self._received.append(error)
            return
        if message["type"] == WINDOW:
            self._num_written = message["num_written"]
            return
        self._is_told_nothing |= message["type"] == "http.disconnect"
        self._received.append(message)

    def end(self) -> None:
        if self._taking is not None:
            self._taking.cancel()


def _size(message: Message) -> int:
    """0 for what is not a part of the answer's body."""
    return len(message.get("body", b"")) + MESSAGE_BYTES if message["type"] == "http.response.body" else 0
