"""Error answers: statuses, types, codes and the common form of the body."""

import math
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.api.absent import nothing_at, why_absent
from cluster.api.error_shapes import anthropic_error, openai_error
from cluster.api.scopes import path_of, request_id, speaks_anthropic
from engine.errors import (
    DEADLINE_EXCEEDED,
    FINGERPRINT_CHANGED,
    OF_THE_REQUEST,
    REQUEST_QUARANTINED,
    DeadlineExceeded,
    EngineDead,
    FingerprintChanged,
    InputProcessingError,
    InvalidRequest,
    Overloaded,
    RequestQuarantined,
    SquadronError,
)

MAX_MESSAGE = 1000  # characters
REFUSALS = "squadron.refusals"  # among a scope's `extensions`: what counts errors, by their code and limit
MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1, 120  # seconds; the openai client does not retry if it is more
OVERLOAD_RETRY_AFTER, RESTART_RETRY_AFTER = 2.0, 5.0  # at least
SHUTDOWN_RETRY_AFTER = 10.0

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(SquadronError):
    """An error answer. `retry_after` in seconds, `param` a path such as `messages[0].content`,
    `limit`: see `Overloaded`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        limit: str | None = None,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        if retry_after is not None:
            seconds = min(MAX_RETRY_AFTER, max(MIN_RETRY_AFTER, math.ceil(retry_after)))
            self.headers["retry-after"] = str(seconds)

    @property
    def type(self) -> str:
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPES.get(self.status, default)


class Unavailable(ApiError):
    """No server can accept the request now."""

    def __init__(
        self,
        message: str,
        *,
        code: Literal["not_ready", "shutting_down", "engine_restarting", "gateway_lost"],
        retry_after: float,
    ) -> None:
        super().__init__(503, message, code=code, retry_after=retry_after)


class ShuttingDown(Unavailable):
    """For good: the client's next connection may reach another server."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down", code="shutting_down", retry_after=SHUTDOWN_RETRY_AFTER)
        self.headers["connection"] = "close"


# What the service may raise on purpose; anything else is a bug, and its traceback is logged.
FORESEEN: tuple[type[SquadronError], ...] = (
    ApiError,
    InvalidRequest,
    InputProcessingError,
    Overloaded,
    DeadlineExceeded,
    EngineDead,
    FingerprintChanged,
    RequestQuarantined,
)


def as_api_error(error: Exception) -> ApiError:
    """The error answer for an exception; for an unforeseen one it only says that it happened."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return ApiError(400, error.message, code=error.code, param=error.param)
        case InputProcessingError():
            return ApiError(500, f"The request failed: {error}", code="generation_failed")
        case RequestQuarantined():
            # The header keeps the openai client from sending it again.
            return ApiError(500, str(error), code=REQUEST_QUARANTINED, headers={"x-should-retry": "false"})
        case DeadlineExceeded():
            # Sent again by itself, the request would have its timeout once more.
            return ApiError(504, str(error), code=DEADLINE_EXCEEDED, headers={"x-should-retry": "false"})
        case FingerprintChanged():
            # If it is sent again from its beginning, the current engines will answer it.
            return ApiError(503, str(error), code=FINGERPRINT_CHANGED, retry_after=_spread(RESTART_RETRY_AFTER))
        case Overloaded():
            retry_after = _spread(error.retry_after or OVERLOAD_RETRY_AFTER)
            return ApiError(503, str(error), code="server_overloaded", retry_after=retry_after, limit=error.limit)
        case EngineDead():
            return Unavailable(str(error), code="engine_restarting", retry_after=_spread(RESTART_RETRY_AFTER))
        case ClientDisconnect():
            return ApiError(400, "The client has gone", code="client_disconnected")  # which is not read
        case HTTPException(status_code=405, headers=headers):
            return ApiError(405, "This URL does not take this method", code="method_not_supported", headers=headers)
        case HTTPException(status_code=status, detail=detail):
            return ApiError(status, detail, code="invalid_request")
        case _:
            # The server closes the connection, too.
            message = "The server failed while it worked on the request"
            return ApiError(500, message, code="internal_error", headers={"connection": "close"})


def request_failed(message: str | None, code: str | None) -> ApiError:
    """The error answer for a request that an engine began and ended with an error of its own."""
    status = 400 if code in OF_THE_REQUEST else 500
    return ApiError(status, f"The request failed: {message}", code=code or "generation_failed")


def _spread(seconds: float) -> float:
    """A random factor, so that clients rejected together do not retry together."""
    return seconds * random.uniform(1.0, 2.0)


def error_body(error: ApiError, scope: Scope | None = None) -> bytes:
    """JSON, in the form of the API that is asked; by default in OpenAI's, which has no id of the
    request.
    """
    message = error.message if len(error.message) <= MAX_MESSAGE else error.message[:MAX_MESSAGE] + "…"
    if scope is not None and speaks_anthropic(scope):
        told_id = request_id(scope)
        return anthropic_error(message, error.status, param=error.param, code=error.code, request_id=told_id)
    return openai_error(message, error.type, param=error.param, code=error.code)


class ErrorResponse(Response):
    """Names its code to the middleware that counts answers, which puts itself into the scope."""

    media_type = "application/json"

    def __init__(self, error: ApiError) -> None:
        super().__init__(error_body(error), error.status, error.headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        count_refusal = scope.get("extensions", {}).get(REFUSALS)
        if count_refusal is not None:
            count_refusal(self._error.code, self._error.limit)
        if speaks_anthropic(scope):
            self.body = error_body(self._error, scope)
            self.init_headers(self._error.headers)
        await super().__call__(scope, receive, send)


def error_response(error: ApiError) -> Response:
    return ErrorResponse(error)


async def _answer(request: Request, error: Exception) -> Response:
    path = path_of(request.scope)
    # Another method of a URL may be there that ends as this one does: "compact" may be an id.
    if isinstance(error, HTTPException) and (error.status_code == 404 or why_absent(path)):
        routes = [getattr(route, "path", "") for route in request.app.routes]
        error = ApiError(404, nothing_at(path, routes), code="unknown_url")
    return error_response(as_api_error(error))


# For the application: any exception before an answer has begun.
HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = dict.fromkeys(
    (*FORESEEN, HTTPException, ClientDisconnect, Exception), _answer
)
