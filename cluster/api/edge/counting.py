"""Counts answers by route, method and status, and errors by their code. What clients invent never
becomes a label: an unknown path or method is counted as "other", and so is the path of what is
refused before its key is known.
"""

from collections.abc import Awaitable

from fastapi import APIRouter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.errors import REFUSALS
from cluster.metrics.counters import OTHER, Counters

# What needs no valid key to be answered so counts under one route: else its routes and methods
# would take the series that answers need.
UNCHECKED = (401, 403, 431)
METHODS = ("GET", "HEAD", "POST", "DELETE")
# From 0 on, so that the first one shows as an increase.
FORESEEN_CODES = ("invalid_api_key", "server_overloaded", "engine_restarting", "generation_failed")


class Counting:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, counters: Counters, router: APIRouter) -> None:
        self._app = app
        self._counters = counters
        paths = sorted(str(getattr(route, "path", "")) for route in router.routes)
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._below = tuple((path.partition("{")[0], path.replace(":path", "")) for path in paths if "{" in path)
        for code in FORESEEN_CODES:
            counters.count("squadron:refused_requests", code, by=0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        def counted(message: Message) -> Awaitable[None]:  # a coroutine of its own would cost every event of a stream
            if message["type"] == "http.response.start":
                self._answered(scope, message["status"])
            return send(message)

        extensions = {**scope.get("extensions", {}), REFUSALS: self._refused}
        await self._app({**scope, "extensions": extensions}, receive, counted)

    def _answered(self, scope: Scope, status: int) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = OTHER if status in UNCHECKED else self._route(scope)
        self._counters.count("squadron:http_requests", route, method, str(status))

    def _refused(self, code: str) -> None:
        self._counters.count("squadron:refused_requests", code)

    def _route(self, scope: Scope) -> str:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in self._paths:
            return path
        return next((route for prefix, route in self._below if path.startswith(prefix)), OTHER)
