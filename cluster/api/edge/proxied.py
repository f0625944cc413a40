"""Requests that come through a proxy: what the proxy refuses itself, and how a gateway knows that
the proxy is configured.
"""

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.edge.middleware import check_size
from cluster.api.edge.server import is_closing
from cluster.api.errors import ApiError, ShuttingDown, error_response
from cluster.api.scopes import safe_headers

MARK = "squadron.proxy"  # in the `extensions` of a request's scope: it came through a configured proxy
# There as well: the application itself ends the request when its client leaves. Serve then needs
# neither tasks of its own for it nor a queue without limit between socket and application.
WATCHED = "squadron.watched"
# By it Serve's controller makes the proxies that it starts call `set_up`; see `CONTROLLER_OPTIONS`.
SET_UP = ("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "cluster.api.proxy:set_up")
ROUTES_PATH = "/-/routes"  # Serve's own: lists the applications to everyone
# Serve's own headers for its proxies. From a client they would end its request early, or leave it
# running after a disconnect; a value that is not UTF-8 fails in Serve.
SERVE_HEADERS = frozenset(
    [
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
        b"x-session-id",
        b"x-request-timeout-seconds",
        b"x-request-disconnect-disabled",
    ]
)
_UNWATCHED_BY_SERVE = (b"x-request-disconnect-disabled", b"?1")
_logger = logging.getLogger("ray.serve")


class ProxyEdge:
    """ASGI middleware for requests that would fail in the proxy itself; gateways check keys and
    hosts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                if is_closing(scope):
                    raise ShuttingDown
                check_size(scope["headers"])
                if scope["path"].endswith(ROUTES_PATH):
                    raise ApiError(404, "There is nothing at this URL", code="unknown_url")
            except ApiError as error:
                await error_response(error)(scope, receive, send)
                return
            headers = [each for each in safe_headers(scope["headers"]) if each[0] not in SERVE_HEADERS]
            extensions = {**scope.get("extensions", {}), MARK: {}}
            if WATCHED in extensions:
                headers.append(_UNWATCHED_BY_SERVE)
            scope = {**scope, "headers": headers, "extensions": extensions}
        await self._app(scope, receive, send)


class BareProxyWarning:
    """ASGI middleware of a gateway, which logs once that requests come through proxies that were
    not configured.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._has_warned and MARK not in scope.get("extensions", {}):
            self._has_warned = True
            variable, value = SET_UP
            _logger.warning(
                f"Serve's proxies were started without {variable}={value}: they never end silent connections, hold "
                "whole answers for clients that read slowly, drop the body of requests that offer HTTP/2, fail at "
                "headers that are not UTF-8, and tell every client the routes"
            )
        await self._app(scope, receive, send)
