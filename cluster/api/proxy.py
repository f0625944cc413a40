"""Our code in the processes of Ray Serve's proxies, which listen, and pass requests to the
gateways.
"""

import os

import uvicorn.protocols.http.auto
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY
from starlette.middleware import Middleware

from cluster.api.connection.window import WindowUpdates
from cluster.api.edge.connection import Connection
from cluster.api.edge.lost_gateway import LostGateways
from cluster.api.edge.proxied import SET_UP, ProxyEdge
from cluster.api.edge.server import ProxyServer
from cluster.api.front.listening import NODE_ADDRESS, is_gateway, own_server_name, told_patience
from cluster.certificate import told_files
from cluster.logs import write_one_line_each

# Serve's proxies call `set_up` as they start, by this name. They have the environment of Serve's
# controller, which replaces a proxy that fails three checks in a row: a dead one is noticed in 0.6
# s (Serve: 30), a frozen one in 16 s (60).
CONTROLLER_OPTIONS = {
    "runtime_env": {
        "env_vars": {
            SET_UP[0]: SET_UP[1],
            "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.2",
            "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "5",
        }
    }
}


def set_up() -> list[Middleware]:
    """Make uvicorn in this process use our server and connections; returns the middlewares for all
    requests, the inner one first.
    """
    write_one_line_each()
    uvicorn.Server = ProxyServer  # type: ignore[misc]
    if not is_gateway():  # which has its own, see `cluster.gateway.http`
        uvicorn.protocols.http.auto.AutoHTTPProtocol = Connection
    ProxyServer.is_behind_haproxy = RAY_SERVE_ENABLE_HA_PROXY
    if RAY_SERVE_ENABLE_HA_PROXY:
        ProxyServer.address = os.environ.get(NODE_ADDRESS, "")
        Connection.server_name = own_server_name().encode()
    else:
        ProxyServer.certificate = told_files()
        if ProxyServer.certificate is not None:
            ProxyServer.certificate.read()  # one that could not be served ends this process here, with the reason
    if is_gateway():  # of gateways, to which HAProxy sends requests
        return [Middleware(ProxyEdge)]
    # HAProxy sends requests to a proxy of Serve's while there is no gateway.
    lost = {"ask_patience": told_patience} if RAY_SERVE_ENABLE_HA_PROXY else {}
    return [Middleware(WindowUpdates), Middleware(LostGateways, **lost), Middleware(ProxyEdge)]
