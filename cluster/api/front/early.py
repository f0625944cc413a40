"""A full server's refusals, before anything else is done for a request: what Serve and FastAPI do
for one costs many times as much, and most of what comes in an overload is refused.
"""

from collections.abc import Awaitable, Callable

from ray.serve._private.http_util import RequestIdMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.arrivals import Arrivals, asks_for_rest
from cluster.api.edge.proxied import WATCHED, ProxyEdge
from cluster.api.errors import ApiError, as_api_error, error_response
from cluster.api.front.known import known
from cluster.api.front.one_a_turn import OneATurn
from cluster.api.front.shares import Shares
from cluster.api.service import Application
from cluster.headers.full_queue import PATHS, Latest, LatestNumbers, room_headers
from engine.errors import Overloaded

_ERROR = "squadron.overloaded"  # among a scope's `extensions`


class EarlyRefusals:
    """Of one gateway. What is not refused is looked at again by the application, which also knows
    the streams that broke, and may be resumed.
    """

    def __init__(
        self,
        application: Application,
        max_model_len: int,
        guarded: ASGIApp,
        count_refused: Callable[[int, str], None],
        shares: Shares,
        *,
        resumes: bool,
        has_pages: bool,
    ) -> None:
        """`guarded`: `answer`, behind all that the application is behind. `count_refused` is
        told how many HAProxy has refused, and for which limit. `resumes`, `has_pages`: see
        `room_headers`.
        """
        self._application = application
        self._max_model_len = max_model_len
        self._count_refused = count_refused
        self._shares = shares
        self._resumes = resumes
        self._has_pages = has_pages
        self._arrivals = Arrivals()
        self._latest_numbers = LatestNumbers()
        self._turns = OneATurn()
        self._is_low = False  # the room, when it was told last
        self._limit = ""  # that it had then, if there is one
        self._refuse = ProxyEdge(RequestIdMiddleware(guarded))  # as Serve puts them before the application

    async def __call__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_asked(scope):
            await app(scope, receive, send)
            return
        scope = _with(scope, WATCHED, {})
        load, seconds, num_refused, let_in = known(scope, self._max_model_len)
        latest = self._latest_numbers.note(let_in)
        if num_refused:
            self._count_refused(num_refused, self._limit)
        if self._resumes and asks_for_rest(scope):
            await app(scope, receive, send)
            return
        share = self._shares.of(scope)
        try:
            beside = self._arrivals.beside(share.key)
            self._application.check_room(load, seconds, share=share, arriving=beside)
        except (Overloaded, ApiError) as error:
            await self._refuse(_with(scope, _ERROR, as_api_error(error)), receive, self._telling(latest, send))
        else:
            with self._arrivals.one(load, share.key):
                await self._turns.wait()
                await app(scope, receive, self._telling(latest, send))

    def _telling(self, latest: Latest, send: Send) -> Send:
        """`send`, with what HAProxy takes out of an answer's headers."""

        def tell(message: Message) -> Awaitable[None]:  # a coroutine of its own would cost every event of a stream
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in self._room(latest).items()]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            return send(message)

        return tell

    def _room(self, latest: Latest) -> dict[str, str]:
        """Also that there is more than enough, once after there was not. HAProxy, which knows no
        keys, is told of a queue that keys share only when it has no room for any of them: the rest
        is refused here, by key.
        """
        room = self._application.room(self._arrivals.load, by_key=bool(self._shares))
        if room is not None and room.num_requests > 0 and self._shares:
            room = None
        was_low, self._is_low = self._is_low, room is not None
        if room is not None:
            self._limit = room.limit
        if not was_low and not self._is_low:
            return {}
        return room_headers(room, latest.number, resumes=self._resumes, has_pages=self._has_pages)


def _is_asked(scope: Scope) -> bool:
    """Whether it is of what is refused if nothing has room."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    return scope["path"].removeprefix(scope.get("root_path", "")) in PATHS


def _with(scope: Scope, extension: str, value: object) -> Scope:
    return {**scope, "extensions": {**scope.get("extensions", {}), extension: value}}


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse, as the scope says."""
    await error_response(scope["extensions"][_ERROR])(scope, receive, send)
