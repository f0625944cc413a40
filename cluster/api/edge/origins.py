"""Which web pages may use the server from a browser (CORS): none, unless they are named."""

import re
from collections.abc import Iterable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Scope

from cluster.api.edge.hosts import is_local
from cluster.api.errors import ApiError
from engine.errors import InvalidConfig

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[\w-]+(\.[\w-]+)*)(:[0-9]{1,5})?")
ANY = "*"
# Headers of answers that a page's script may read, beside those that it always may.
TOLD = [
    *("retry-after", "x-request-id", "request-id"),
    *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
]


def check_origins(origins: Iterable[str]) -> None:
    """Raises InvalidConfig."""
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise InvalidConfig(f"allowed_origins: {origin!r} is neither http(s)://HOST, with or without a port, nor *")


def allowing(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """The application, which answers browsers that ask whether a page of these origins may send a
    request (which they ask without its key), and lets it read the answers.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=TOLD,
    )


def check_own_page(scope: Scope) -> None:
    """Raises ApiError unless a page of this server sends it, in a browser on this machine: browsers
    say of every POST which page's it is, and let no page say anything else.
    """
    if not _is_own(scope) or not is_local(scope):
        raise ApiError(403, "Only this server's own page on this machine may do this", code="page_needed")


def check_page(scope: Scope, origins: tuple[str, ...]) -> None:
    """Raises ApiError for what a page of another origin has a browser send without having asked
    whether it may: browsers ask before they send JSON, or a key.
    """
    sent = _values(scope, b"origin")
    media_type = b"".join(_values(scope, b"content-type")[:1]).partition(b";")[0].strip().lower()
    if not sent or scope["method"] != "POST" or media_type == b"application/json":
        return
    is_allowed = ANY in origins or all(each.decode("latin-1") in origins for each in sent)
    if not is_allowed and not _is_own(scope):
        message = "Pages of this origin may not do this; --allowed-origins says which may"
        raise ApiError(403, message, code="origin_not_allowed")


def _is_own(scope: Scope) -> bool:
    """Whether a page of this server sends it."""
    origins, hosts = _values(scope, b"origin"), _values(scope, b"host")
    return len(origins) == len(hosts) == 1 and origins[0].partition(b"://")[2].lower() == hosts[0].lower()


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]
