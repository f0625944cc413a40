"""Checks before any route: size of the headers, the request's id, host name and API key."""

from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.edge.hosts import ANY, AllowedHosts, is_local
from cluster.api.edge.origins import check_own_page, check_page
from cluster.api.errors import ApiError, error_response
from cluster.api.keys.key import Key
from cluster.api.keys.key_ring import KeyRing
from cluster.api.keys.limits import CALLER, Caller, KeyLimits, tell_key
from cluster.api.models.adapters import ADAPTER_PATHS
from cluster.api.models.controls import CONTROL_PATHS
from cluster.api.scopes import path_of, safe_headers, telling_request_id
from cluster.api.service import KILL_PATH
from engine.request import NO_KEY

MAX_HEADER_BYTES = 64 << 10
OPEN_PATHS = frozenset(["/health", "/ping", "/"])  # all that need no key: whatever is not named here does
PAGE_PATHS = "/page/"  # nor do those of the page's files
METRICS_PATH = "/metrics"
DEBUG_PATHS = "/debug/"  # paths that reveal other clients' requests
KEY_HEADERS = ((b"authorization", b"bearer"), (b"x-api-key", b""))  # in order, with the scheme before the key
# Among the `extensions` of a scope that no connection made: whose request it is. It was let in
# where it came in.
INNER = "squadron.inner"
# What a key's entry must say for paths that change something for everybody.
_NEEDED = dict.fromkeys(ADAPTER_PATHS, "loads_adapters") | dict.fromkeys(CONTROL_PATHS, "controls_engines")


class Edge:
    """ASGI middleware. Without keys none is needed, and only clients on this machine may use
    /debug/ and /metrics, change adapters and control engines; with `open_metrics` any client may
    read /metrics.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: KeyRing,
        allowed_hosts: tuple[str, ...] = (ANY,),
        allowed_origins: tuple[str, ...] = (),
        open_metrics: bool = False,
        limits: KeyLimits | None = None,
    ) -> None:
        """`limits`: of keys, whose requests others may count there, too."""
        self._app = app
        self._hosts = AllowedHosts(allowed_hosts)
        self._origins = allowed_origins
        self._open_paths = OPEN_PATHS | ({METRICS_PATH} if open_metrics else set())
        self._keys = api_keys
        self._limits = limits or KeyLimits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        inner: Caller | None = scope.get("extensions", {}).get(INNER)
        if inner is not None:
            tell_key(scope, inner.key.name)
            await self._app({**scope, "extensions": {**scope["extensions"], CALLER: inner}}, receive, send)
            return
        headers = scope["headers"]
        scope = {**scope, "headers": safe_headers(headers)}
        send = telling_request_id(scope, send)
        try:
            key = self._check(scope, headers)
            if key is not None:
                tell_key(scope, key.name)
            # Only what engines are asked for counts, and that is posted.
            turn = self._limits.begin(key) if key is not None and scope["method"] == "POST" else None
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        if key is not None:
            share = key.share if self._keys.are_several else NO_KEY
            scope["extensions"] = {**scope.get("extensions", {}), CALLER: Caller(key, turn, share)}
        if turn is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, turn.telling(send))
        finally:
            turn.end()

    def _check(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> Key | None:
        """The request's key, if one is needed; raises ApiError."""
        path = path_of(scope)
        check_size(headers)
        self._check_host([value for name, value in headers if name == b"host"])
        if path == KILL_PATH:
            check_own_page(scope)
        if path in self._open_paths or path.startswith(PAGE_PATHS):
            return None
        if self._keys:
            key = self._key(headers)
            needed = _NEEDED.get(path)
            if needed is not None and not getattr(key, needed):
                message = f"The API key {key.name!r} may not do this: its entry in the key file has no {needed}"
                raise ApiError(403, message, code="key_not_allowed")
            return key
        is_inner = path.startswith(DEBUG_PATHS) or path == METRICS_PATH or path in _NEEDED
        if is_inner and not is_local(scope):
            message = "Without an API key, this is only for clients on the server's own machine"
            raise ApiError(403, message, code="key_or_loopback_needed")
        check_page(scope, self._origins)
        return None

    def _check_host(self, values: list[bytes]) -> None:
        host = values[0] if len(values) == 1 else b""
        if not self._hosts.allows(host):
            shown = host[:64].decode("ascii", "backslashreplace")
            message = f"This server does not answer to the host {shown!r}; --allowed-hosts says to which it does"
            raise ApiError(403, message, code="host_not_allowed")

    def _key(self, headers: list[tuple[bytes, bytes]]) -> Key:
        presented = presented_key(headers)
        found = self._keys.find(presented)
        if not presented or found is None:
            message = "An API key is needed: send 'Authorization: Bearer KEY', or 'x-api-key: KEY', with a valid one"
            raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        return found


def presented_key(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The key that the client shows. `Authorization` counts if it is there, and otherwise
    `x-api-key`, which Anthropic's clients send. Empty, which no key is, if there is none, or two.
    """
    for name, scheme in KEY_HEADERS:
        values = [value for header, value in headers if header == name]
        if values:
            shown, _, key = values[0].partition(b" ") if scheme else (b"", b"", values[0])
            return key if len(values) == 1 and shown.lower() == scheme else b""
    return b""


def check_size(headers: list[tuple[bytes, bytes]]) -> None:
    num_bytes = sum(len(name) + len(value) for name, value in headers)
    if num_bytes > MAX_HEADER_BYTES:
        message = f"The headers have {num_bytes} bytes, at most {MAX_HEADER_BYTES} are taken"
        raise ApiError(431, message, code="headers_too_large", headers={"connection": "close"})
