"""From a request's raw body to a JSON object, strictly: what two readers could take differently is refused."""

import asyncio
import json
import math
import re
from typing import Any, NoReturn

from starlette.requests import Request

from cluster.api.errors import ApiError

MAX_DEPTH = 128
# What parsing makes of a body can be 30 times its size: these are counted in the text, strings included, before it.
MAX_BRACKETS = 1 << 18
MAX_COMMAS = 1 << 21
MAX_INTEGER_BITS = 1024  # beyond it no double is near
_SURROGATE = re.compile("[\ud800-\udfff]")


async def read_object(request: Request, *, max_bytes: int, timeout: float) -> dict[str, Any]:
    """The object in a request's body. `timeout`: seconds for all of it. Raises ApiError, ClientDisconnect."""
    _check_headers(request)
    try:
        async with asyncio.timeout(timeout):
            body = await _read(request, max_bytes)
    except TimeoutError:
        message = f"The body was not complete after {timeout:g} seconds"
        raise ApiError(408, message, code="request_timeout", headers={"connection": "close"}) from None
    return parse_object(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """The object that `body` is the JSON text of; raises ApiError."""
    if not body:
        _refuse("The body is empty")
    if body.count(b"[") + body.count(b"{") > MAX_BRACKETS or body.count(b",") > MAX_COMMAS:
        raise ApiError(413, "The body has too many values", code="request_too_large")
    try:
        value = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        _refuse(f"The body is not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        _refuse(f"The body is not JSON: {error.msg} at character {error.pos}")
    except RecursionError:
        _refuse_depth()
    except ValueError:
        _refuse("The body holds an integer with thousands of digits")
    if not isinstance(value, dict):
        _refuse("The body is JSON, but not an object")
    _check_values(value)
    return value


def _check_headers(request: Request) -> None:
    media_type, *parameters = (part.strip().lower() for part in request.headers.get("content-type", "").split(";"))
    charsets = [part.removeprefix("charset=").strip('"') for part in parameters if part.startswith("charset=")]
    if media_type != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise ApiError(415, "The content-type must be application/json, in UTF-8", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "The body must not be compressed", code="unsupported_content_encoding")


async def _read(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    body = bytearray()
    if not (length.isdecimal() and int(length) > max_bytes):
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                break
        else:
            return bytes(body)
    raise ApiError(413, f"The body has more than {max_bytes} bytes", code="request_too_large")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        _refuse("An object in the body has a key twice")
    return made


def _constant(name: str) -> NoReturn:
    _refuse(f"{name} is not JSON")


def _check_values(value: Any) -> None:
    """Refuse numbers out of a double's range, text that is not Unicode, and depth; level by level."""
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            _refuse_depth()
        below: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                _check_items(list(container), below)
                container = container.values()
            _check_items(container, below)
        level = below


def _check_items(items: Any, below: list[Any]) -> None:
    for item in items:
        kind = type(item)
        if kind is dict or kind is list:
            below.append(item)
        elif kind is str:
            if not item.isascii() and _SURROGATE.search(item):
                _refuse("A string in the body has half of a surrogate pair")
        elif (kind is int and item.bit_length() > MAX_INTEGER_BITS) or (kind is float and math.isinf(item)):
            _refuse("A number in the body is too large")


def _refuse_depth() -> NoReturn:
    raise ApiError(400, f"The body is nested more than {MAX_DEPTH} levels deep", code="request_too_large")


def _refuse(message: str) -> NoReturn:
    raise ApiError(400, message, code="invalid_json")
