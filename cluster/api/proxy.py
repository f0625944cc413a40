"""Our code in the processes of Ray Serve's proxies, which listen, and pass requests to the
gateways.
"""

import logging
import os

import ray
import uvicorn.protocols.http.auto
from ray import serve
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY, SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.exceptions import RayServeException
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.edge.connection import Connection
from cluster.api.edge.hosts import check_open
from cluster.api.edge.lost_gateway import LostGateways
from cluster.api.edge.middleware import check_size, safe_headers
from cluster.api.edge.server import ProxyServer, is_closing
from cluster.api.errors import ApiError, ShuttingDown, error_response
from cluster.certificate import told_files
from cluster.logs import write_one_line_each

# Serve's proxies call the function of this name as they start. They have the environment of Serve's
# controller, which replaces a proxy that fails three checks in a row: a dead one is noticed in 0.6
# s (Serve: 30), a frozen one in 16 s (60).
CONTROLLER_OPTIONS = {
    "runtime_env": {
        "env_vars": {
            "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "cluster.api.proxy:set_up",
            "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.2",
            "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "5",
        }
    }
}
# Environment variables, as in cluster/ingress/haproxy.py, which imports nothing.
HOST = "SQUADRON_HTTP_HOST"
NODE_ADDRESS = "SQUADRON_NODE_ADDRESS"
MARK = "squadron.proxy"  # in the `extensions` of a request's scope: it came through a configured proxy
PATIENCE_KEY = b"squadron.patience"
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
_logger = logging.getLogger("ray.serve")


def set_up() -> list[Middleware]:
    """Make uvicorn in this process use our server and connections; returns the middlewares for all
    requests, the inner one first.
    """
    write_one_line_each()
    uvicorn.Server = ProxyServer  # type: ignore[misc]
    uvicorn.protocols.http.auto.AutoHTTPProtocol = Connection
    ProxyServer.is_behind_haproxy = RAY_SERVE_ENABLE_HA_PROXY
    if RAY_SERVE_ENABLE_HA_PROXY:
        ProxyServer.address = os.environ.get(NODE_ADDRESS, "")
    else:
        ProxyServer.certificate = told_files()
        if ProxyServer.certificate is not None:
            ProxyServer.certificate.read()  # one that could not be served ends this process here, with the reason
    if _is_replica():  # of gateways, to which HAProxy sends requests
        return [Middleware(ProxyEdge)]
    if RAY_SERVE_ENABLE_HA_PROXY:  # to this proxy it sends requests while there is no gateway
        return [Middleware(LostGateways, ask_patience=told_patience), Middleware(ProxyEdge)]
    return [Middleware(LostGateways), Middleware(ProxyEdge)]


async def check_ingress(*, has_keys: bool, insecure_no_key: bool) -> None:
    """Log what listens, as this gateway's process was told, and otherwise why it is not HAProxy.
    Raises InvalidConfig if it listens beyond loopback, and nobody said that all may come.
    """
    wish = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY")
    why_not = "" if wish == "0" else ", not HAProxy: Ray was started without it (see configs/cluster/README.md)"
    _logger.info("Ingress: HAProxy" if RAY_SERVE_ENABLE_HA_PROXY else f"Ingress: Serve's own proxy{why_not}")
    host = os.environ.get(HOST) if RAY_SERVE_ENABLE_HA_PROXY else None
    if not host:
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        host = (await controller.get_http_config.remote()).host
    if host:  # otherwise nothing listens
        check_open(host, has_keys=has_keys, insecure_no_key=insecure_no_key)


def _is_replica() -> bool:
    try:
        serve.get_replica_context()
    except RayServeException:
        return False
    return True


def tell_patience(seconds: float) -> None:
    """Leave with Ray's GCS how long a request may wait for a gateway, for proxies that have met
    none.
    """
    _internal_kv_put(PATIENCE_KEY, str(seconds).encode(), overwrite=True)


def told_patience() -> float | None:
    """What the last gateway to start has left, in seconds; None if that is not to be had."""
    try:
        told = _internal_kv_get(PATIENCE_KEY)
    except RayError:  # without the GCS
        return None
    return None if told is None else float(told)


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
            scope = {**scope, "headers": headers, "extensions": {**scope.get("extensions", {}), MARK: {}}}
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
            (variable, value), *_ = CONTROLLER_OPTIONS["runtime_env"]["env_vars"].items()
            _logger.warning(
                f"Serve's proxies were started without {variable}={value}: they hold silent connections for ever, drop "
                "the body of requests that offer HTTP/2, fail at headers that are not UTF-8, and tell everybody the "
                "routes"
            )
        await self._app(scope, receive, send)
