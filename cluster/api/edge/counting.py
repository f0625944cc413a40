"""Counts answers by route, method and status, and errors by their code. What clients invent never
becomes a label: an unknown path or method is counted as "other", and so is the path of what is
refused before its key is known.
"""

from collections.abc import Awaitable, Iterable, Sequence

from fastapi import APIRouter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.arrivals import KEY, MODEL, TOLD
from cluster.api.errors import REFUSALS
from cluster.api.scopes import path_of
from cluster.metrics.counters import OTHER, Counters

# What needs no valid key to be answered so counts under one route: else its routes and methods
# would take the series that answers need.
UNCHECKED = (401, 403, 431)
METHODS = ("GET", "HEAD", "POST", "DELETE")
# From 0 on, so that the first one shows as an increase.
QUEUE_LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens", "max_queue_seconds", "timeout")
KEY_CODES = ("rate_limit_exceeded", "server_overloaded", "engine_restarting")  # by key; all others are OTHER
FORESEEN_CODES = ("invalid_api_key", "server_overloaded", "engine_restarting", "generation_failed")


class HttpCounts:
    """Of one gateway. The first label is the name of the model that is asked for: of the only one,
    or what `tell_model` has told; otherwise it is empty.
    """

    def __init__(self, counters: Counters, names: Sequence[str], keys: Iterable[str] = ()) -> None:
        """`names`: of all models; `keys`: of the API keys that there are at first."""
        self._counters = counters
        self._only = names[0] if len(names) == 1 else ""
        for name in {*names, self._only}:
            for code in FORESEEN_CODES:
                self.refused(code, name, by=0)
            for limit in QUEUE_LIMITS:
                self._counters.count("vllm:admission_rejections", name, limit, by=0)
        self.refused_before(0, QUEUE_LIMITS[0])
        for key in keys:
            for code in KEY_CODES:
                self.refused_to(key, code, by=0)

    def answered(self, route: str, method: str, status: int, model: str | None = None, by: int = 1) -> None:
        self._counters.count("squadron:http_requests", model or self._only, route, method, str(status), by=by)

    def refused_before(self, num: int, limit: str) -> None:
        """So many were, for a full queue, before they reached a gateway. `limit`: see `Room`; empty
        if only another gateway knows it.
        """
        self.refused("server_overloaded", by=num, limit=limit or QUEUE_LIMITS[0])
        self.answered(OTHER, "POST", 503, by=num)

    def refused(self, code: str, model: str | None = None, by: int = 1, limit: str | None = None) -> None:
        """`limit`: see `Overloaded`."""
        self._counters.count("squadron:refused_requests", model or self._only, code, by=by)
        if limit is not None:
            self._counters.count("vllm:admission_rejections", model or self._only, limit, by=by)

    def refused_to(self, key: str, code: str, model: str | None = None, by: int = 1) -> None:
        """A valid key's request was."""
        reason = code if code in KEY_CODES else OTHER
        self._counters.count("squadron:key_refused_requests", model or self._only, key, reason, by=by)


class Counting:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, counts: HttpCounts, router: APIRouter) -> None:
        self._app = app
        self._counts = counts
        paths = sorted(str(getattr(route, "path", "")) for route in router.routes)
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._below = tuple((path.partition("{")[0], path.replace(":path", "")) for path in paths if "{" in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told: dict[str, str] = {}

        def counted(message: Message) -> Awaitable[None]:  # a coroutine of its own would cost every event of a stream
            if message["type"] == "http.response.start":
                self._answered(scope, message["status"], told.get(MODEL))
            return send(message)

        def refused(code: str, limit: str | None) -> None:
            self._counts.refused(code, told.get(MODEL), limit=limit)
            if KEY in told:
                self._counts.refused_to(told[KEY], code, told.get(MODEL))

        extensions = {**scope.get("extensions", {}), REFUSALS: refused, TOLD: told}
        await self._app({**scope, "extensions": extensions}, receive, counted)

    def _answered(self, scope: Scope, status: int, model: str | None) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        # Browsers' preflights (OPTIONS) need no key either.
        is_checked = status not in UNCHECKED and scope["method"] != "OPTIONS"
        route = self._route(scope) if is_checked else OTHER
        self._counts.answered(route, method, status, model)

    def _route(self, scope: Scope) -> str:
        path = path_of(scope)
        if path in self._paths:
            return path
        return next((route for prefix, route in self._below if path.startswith(prefix)), OTHER)
