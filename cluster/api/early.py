"""A full server's refusals, before anything else is done for a request: what Serve and FastAPI do
for one costs many times as much, and most of what comes in an overload is refused.
"""

from typing import Any, ClassVar

from ray.serve._private.http_util import RequestIdMiddleware
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.edge.proxied import ProxyEdge
from cluster.api.edge.unread import UnreadLimit
from cluster.api.errors import as_api_error, error_response
from cluster.api.model import Model
from cluster.api.service import Service
from engine.admission.queue_limits import Load
from engine.errors import Overloaded
from engine.request import BYTES_PER_TOKEN

# Of requests that engines answer.
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_ERROR = "squadron.overloaded"  # among a scope's `extensions`


def may_be_refused(headers: Headers) -> bool:
    """Whether a request is new. A stream that broke was let in before."""
    return "last-event-id" not in headers


def estimated_load(headers: Headers, max_model_len: int) -> Load:
    """Of a request, before anything of its body is read; a prompt that exceeds the context is an
    error anyway.
    """
    length = headers.get("content-length", "")
    num_tokens = int(length) // BYTES_PER_TOKEN if length.isdecimal() else 0
    return Load(1, min(num_tokens, max_model_len))


class EarlyRefusals:
    """Of one gateway. What is not refused is looked at again by the application, and so is what
    comes from a browser's page, which may need headers of the application's.
    """

    def __init__(self, service: Service, model: Model, guarded: ASGIApp) -> None:
        """`guarded`: `answer`, behind all that the application is behind."""
        self._service = service
        self._model = model
        self._refuse = ProxyEdge(RequestIdMiddleware(guarded))  # as Serve puts them before the application

    async def __call__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error(scope)
        if error is None:
            await app(scope, receive, send)
        else:
            scope = {**scope, "extensions": {**scope.get("extensions", {}), _ERROR: error}}
            await self._refuse(scope, receive, send)

    def _error(self, scope: Scope) -> Overloaded | None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        if scope["path"].removeprefix(scope.get("root_path", "")) not in PATHS:
            return None
        headers = Headers(scope=scope)
        if "origin" in headers or not may_be_refused(headers):
            return None
        try:
            self._service.check_room(estimated_load(headers, self._model.max_model_len))
        except Overloaded as error:
            return error
        return None


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse, as the scope says."""
    await error_response(as_api_error(scope["extensions"][_ERROR]))(scope, receive, send)


class GatewayConnection(UnreadLimit):
    """A connection of a gateway's own server, which Serve starts for a load balancer (HAProxy)."""

    refusals: ClassVar[EarlyRefusals | None] = None  # of this process' gateway, once there is one

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._application = self.app
        self.app = self._first

    async def _first(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.refusals is None:
            await self._application(scope, receive, send)
        else:
            await self.refusals(self._application, scope, receive, send)
