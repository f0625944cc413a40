"""For Ray Serve's proxy: a request whose gateway was lost before its answer began is sent to
another gateway.

The request can be sent twice because the first try ended with its gateway, and no one has received
any of its answer.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.errors import Unavailable, error_response

MAX_TRIES = 3
MAX_KEPT_BYTES = 1 << 20  # of a request's body
RETRY_AFTER = 1.0  # seconds


class LostGateways:
    """ASGI middleware. Without it, a gateway's death is a plain-text 500: Serve's proxy returns
    without an answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        for _ in range(MAX_TRIES):
            await self._app(dict(scope), exchange.receive, exchange.send)  # a copy, since the proxy writes into it
            if exchange.is_over:
                return
            if not exchange.rewind():
                break
        message = "The gateway that had this request was lost before the answer began; the request can be sent again"
        await error_response(Unavailable(message, code="gateway_lost", retry_after=RETRY_AFTER))(scope, receive, send)


class _Exchange:
    """A request that can be read again, as long as nothing of its answer has been sent."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._kept: list[Message] = []
        self._num_bytes = 0
        self._num_read = 0  # of the kept messages, in the current try
        self.is_over = False  # the answer has begun, or the client has disconnected

    async def receive(self) -> Message:
        if self._num_read < len(self._kept):
            self._num_read += 1
            return self._kept[self._num_read - 1]
        message = await self._receive()
        self.is_over |= message["type"] == "http.disconnect"
        self._num_bytes += len(message.get("body", b""))
        if not self.is_over and self._num_bytes <= MAX_KEPT_BYTES:
            self._kept.append(message)
            self._num_read += 1
        return message

    async def send(self, message: Message) -> None:
        self.is_over = True
        self._kept.clear()
        await self._send(message)

    def rewind(self) -> bool:
        """Let the next try read from the beginning; False if the body was too long to be kept."""
        self._num_read = 0
        return self._num_bytes <= MAX_KEPT_BYTES
