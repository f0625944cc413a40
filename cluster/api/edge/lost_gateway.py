"""For Ray Serve's proxy: a request whose gateway was lost before its answer began is sent to
another gateway, and one that no gateway takes does not wait forever.

The request can be sent twice because the first try ended with its gateway, and no one has received
any of its answer.

Serve does not tell whether a replica has a request. So a gateway says that it has taken one by an
ASGI message of ours, which is for this middleware alone, and which also tells the patience that its
application has.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.errors import Unavailable, error_response

MAX_TRIES = 3  # of gateways that have the request, and are lost
PAUSE_SECONDS = 0.2  # after a try that no gateway took
MAX_KEPT_BYTES = 1 << 20  # of a request's body
RETRY_AFTER = 1.0  # seconds
PATIENCE_SECONDS = 300.0  # until a gateway has told its own
TAKEN = "squadron.taken"  # the message's type; and among a scope's `extensions`: the proxy waits for it


class LostGateways:
    """ASGI middleware. Without it, a gateway's death is a plain-text 500: Serve's proxy returns
    without an answer.
    """

    def __init__(self, app: ASGIApp, *, ask_patience: Callable[[], float | None] | None = None) -> None:
        """`ask_patience` is called before each request, in a thread: for a proxy that seldom meets
        gateways.
        """
        self._app = app
        self._patience = PATIENCE_SECONDS
        self._ask_patience = ask_patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._ask_patience is not None:
            told: float | None = await asyncio.to_thread(self._ask_patience)
            self._patience = told or self._patience
        exchange = _Exchange(receive, send)
        try:
            error = await self._ask(scope, exchange)
        finally:
            exchange.close()
        self._patience = exchange.patience or self._patience
        if error is not None:
            await error_response(error)(scope, receive, send)

    async def _ask(self, scope: Scope, exchange: "_Exchange") -> Unavailable | None:
        """The client's answer if no gateway has answered."""
        extended = {**scope, "extensions": {**scope.get("extensions", {}), TAKEN: {}}}
        num_lost = 0
        deadline = time.monotonic() + self._patience
        while num_lost < MAX_TRIES:
            with exchange.bounded(self._patience):
                await self._app(dict(extended), exchange.receive, exchange.send)  # a copy: the proxy writes into it
            if exchange.is_over:
                return None
            if exchange.has_given_up or (not exchange.is_taken and time.monotonic() >= deadline):
                message = f"No gateway took the request within {self._patience:g} s; it can be sent again"
                return Unavailable(message, code="not_ready", retry_after=RETRY_AFTER)
            if exchange.is_taken:
                num_lost += 1
            else:  # sent to a gateway that was dead, which Serve will learn
                await asyncio.sleep(PAUSE_SECONDS)
            if not exchange.rewind():
                break
        message = "The gateway that had this request was lost before the answer began; the request can be sent again"
        return Unavailable(message, code="gateway_lost", retry_after=RETRY_AFTER)


class _Exchange:
    """A request that can be read again, as long as nothing of its answer has been sent."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._receiving: asyncio.Task[Message] | None = None  # a message that no try has got yet
        self._kept: list[Message] = []
        self._num_bytes = 0
        self._num_read = 0  # of the kept messages, in the current try
        self._timer: asyncio.TimerHandle | None = None  # of the current try, which no gateway has taken
        self._end = asyncio.Event()  # of the time to wait for a gateway
        self.is_over = False  # the answer has begun, or the client has disconnected
        self.is_taken = False  # in the current try
        self.patience: float | None = None  # of the gateway that has taken it

    @property
    def has_given_up(self) -> bool:
        return self._end.is_set()

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        """A try, which a gateway is to take in so many seconds; then its application is told
        that the client has gone, and heard no more.
        """
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end.set)
        try:
            yield
        finally:
            self._timer.cancel()

    def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()

    async def receive(self) -> Message:
        """If this is cancelled, as the try has ended, the next one gets the message."""
        if self._num_read < len(self._kept):
            self._num_read += 1
            return self._kept[self._num_read - 1]
        self._receiving = self._receiving or asyncio.create_task(self._next())
        ending = asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait([self._receiving, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if not self._receiving.done():
            return {"type": "http.disconnect"}
        message, self._receiving = self._receiving.result(), None
        self.is_over |= message["type"] == "http.disconnect"
        self._num_bytes += len(message.get("body", b""))
        if not self.is_over and self._num_bytes <= MAX_KEPT_BYTES:
            self._kept.append(message)
            self._num_read += 1
        return message

    async def _next(self) -> Message:
        return await self._receive()

    async def send(self, message: Message) -> None:
        if self.has_given_up:
            return
        assert self._timer is not None
        self._timer.cancel()
        if message["type"] == TAKEN:
            self.is_taken = True
            self.patience = message["patience"]
            return
        self.is_over = True
        self._kept.clear()
        await self._send(message)

    def rewind(self) -> bool:
        """Let the next try read from the beginning; False if the body was too long to be kept."""
        self._num_read = 0
        self.is_taken = False
        return self._num_bytes <= MAX_KEPT_BYTES


class TellTaken:
    """ASGI middleware of a gateway: tells the proxy that it has a request, and how long requests
    may wait.
    """

    def __init__(self, app: ASGIApp, patience: float) -> None:
        self._app = app
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if TAKEN in scope.get("extensions", {}):
            await send({"type": TAKEN, "patience": self._patience})
        await self._app(scope, receive, send)
