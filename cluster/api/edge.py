"""What is settled before any route: the size of the headers, the request's id, who may ask."""

import hmac
import re

from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.errors import ApiError, error_response
from engine.errors import InvalidConfig

MAX_HEADER_BYTES = 64 << 10
OPEN_PATHS = frozenset(["/health"])  # what is answered without a key
MAX_REQUEST_ID = 128  # characters
_UNSAFE = re.compile(rb"[^A-Za-z0-9._:=|+-]")  # in a request's id, which Serve writes into its logs


class Edge:
    """ASGI middleware; no keys: everybody may ask."""

    def __init__(self, app: ASGIApp, *, api_keys: tuple[str, ...]) -> None:
        if not all(api_keys):
            raise InvalidConfig("an API key is empty: anybody could ask")
        self._app = app
        self._keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope["path"], scope["headers"])
            except ApiError as error:
                await error_response(error)(scope, receive, send)
                return
            scope = {**scope, "headers": safe_headers(scope["headers"])}
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        check_size(headers)
        if self._keys and path not in OPEN_PATHS:
            self._check_key([value for name, value in headers if name == b"authorization"])

    def _check_key(self, values: list[bytes]) -> None:
        scheme, _, key = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        matches = [hmac.compare_digest(key, known) for known in self._keys]
        if scheme.lower() != b"bearer" or not any(matches):
            message = "An API key is needed: send the header 'Authorization: Bearer KEY' with a valid one"
            raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def check_size(headers: list[tuple[bytes, bytes]]) -> None:
    num_bytes = sum(len(name) + len(value) for name, value in headers)
    if num_bytes > MAX_HEADER_BYTES:
        message = f"The headers have {num_bytes} bytes, at most {MAX_HEADER_BYTES} are taken"
        raise ApiError(431, message, code="headers_too_large", headers={"connection": "close"})


def safe_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers; of a request's id, which is only a name, what is safe to write down. Without any, Serve makes one up."""
    safe = ((name, _safe_id(value) if name == b"x-request-id" else value) for name, value in headers)
    return [(name, value) for name, value in safe if value or name != b"x-request-id"]


def _safe_id(value: bytes) -> bytes:
    return _UNSAFE.sub(b"_", value).lstrip(b"._:=|+-")[:MAX_REQUEST_ID]
