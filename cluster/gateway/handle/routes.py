"""The routes of the HTTP API, called by handle: the same bodies, answers, events and errors, as
dicts.

    handle = serve.get_app_handle("squadron")
    body = {"model": "demo", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    handle.post.remote("/v1/chat/completions", body).result()
    body["stream"] = True
    for chunk in handle.options(stream=True).events.remote("/v1/chat/completions", body): ...

The application that answers is the one that answers over HTTP, so both refuse the same, in the same
words. A refusal is a value, `{"error": {"message", "type", "param", "code"}}`; a stream that fails
ends with one. Headers are optional: `X-Request-Timeout`, `traceparent`, `tracestate`.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import ASGIApp

from cluster.api.errors import ApiError, as_api_error, error_body
from cluster.api.exchange import Exchange
from engine.errors import InvalidRequest


async def post(app: ASGIApp, path: Any, body: Any, headers: Any) -> dict[str, Any]:
    """The whole answer."""
    if isinstance(body, dict) and body.get("stream") is True:
        message = "This method answers whole: for a stream call handle.options(stream=True).events"
        return _refused(InvalidRequest(message, param="stream", code="unsupported_value"))
    async with aclosing(events(app, path, body, headers)) as answers:
        async for answer in answers:
            return answer
    raise AssertionError("every answer has a body")


async def events(app: ASGIApp, path: Any, body: Any, headers: Any) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a stream, or the whole answer if the body asks for no stream."""
    try:
        exchange = _exchange(app, path, body, headers)
    except ApiError as error:
        yield _refused(error)
        return
    async with aclosing(exchange.texts()) as texts:
        async for text in texts:
            answer: dict[str, Any] = msgspec.json.decode(text)
            yield answer


def _exchange(app: ASGIApp, path: Any, body: Any, headers: Any) -> Exchange:
    """Raises ApiError for input that could not have come over HTTP."""
    if not isinstance(path, str):
        raise _no_request("A path is a string", path)
    headers = {} if headers is None else headers
    if not isinstance(headers, dict) or not all(_is_header(*header) for header in headers.items()):
        raise _no_request("Headers are a dict of strings", headers)
    try:
        text = json.dumps(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_request(f"A body is what JSON can hold ({error})", body) from None
    return Exchange(app, path, text.encode(), headers)


def _is_header(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, str) and name.isascii() and value.isascii()


def _no_request(message: str, value: Any) -> ApiError:
    return ApiError(400, f"{message}, got {type(value).__name__}", code="invalid_type")


def _refused(error: Exception) -> dict[str, Any]:
    refusal: dict[str, Any] = msgspec.json.decode(error_body(as_api_error(error)))
    return refusal
