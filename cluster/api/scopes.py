"""What a request's ASGI scope says of it: its path, and its id, which the proxy or the client has
given it.
"""

import re

from starlette.types import Message, Scope, Send

from cluster.api.error_shapes import is_anthropic, is_models

MAX_REQUEST_ID = 128  # characters
_UNSAFE = re.compile(rb"[^A-Za-z0-9._:=|+-]")  # unsafe in a request's id, which Serve writes to its logs


def path_of(scope: Scope) -> str:
    """Without that at which the application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def speaks_anthropic(scope: Scope) -> bool:
    """Whether it gets Anthropic's form: by its path, or, of models, by a header that those clients
    send.
    """
    path = path_of(scope)
    return is_anthropic(path) or (is_models(path) and any(name == b"anthropic-version" for name, _ in scope["headers"]))


def request_id(scope: Scope) -> str | None:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), None)


def safe_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers, with the request's id made safe for logs. If nothing of it is left, Serve
    generates one.
    """
    safe = ((name, _safe_id(value) if name == b"x-request-id" else value) for name, value in headers)
    return [(name, value) for name, value in safe if value or name != b"x-request-id"]


def telling_request_id(scope: Scope, send: Send) -> Send:
    """Anthropic's clients read the request's id from a header of another name."""
    known = request_id(scope)
    if known is None or not speaks_anthropic(scope):
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"request-id", known.encode("latin-1"))]}
        await send(message)

    return sending


def _safe_id(value: bytes) -> bytes:
    return _UNSAFE.sub(b"_", value).lstrip(b"._:=|+-")[:MAX_REQUEST_ID]
