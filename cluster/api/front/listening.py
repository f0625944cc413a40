"""What gateways and proxies are told of the server that listens in front of them."""

import asyncio
import logging
import os

import ray
from ray import serve
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY, SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.exceptions import RayServeException

from cluster.api.edge.hosts import check_open
from cluster.headers.addressee import server_name

# Environment variables, as in cluster/ingress/haproxy.py, which imports none of ours.
HOST = "SQUADRON_HTTP_HOST"
NODE_ADDRESS = "SQUADRON_NODE_ADDRESS"
PATIENCE_KEY = b"squadron.patience"
_logger = logging.getLogger("ray.serve")


async def check_ingress(*, has_keys: bool, insecure_no_key: bool) -> str:
    """The host on which it listens, empty if nothing does. Logs what listens, as this gateway's
    process was told, and otherwise why it is not HAProxy. Raises InvalidConfig if it, or this
    gateway behind it, listens beyond loopback without keys and without insecure_no_key.
    """
    wish = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY")
    why_not = "" if wish == "0" else ", not HAProxy: Ray was started without it (see configs/cluster/README.md)"
    _logger.info("Ingress: HAProxy" if RAY_SERVE_ENABLE_HA_PROXY else f"Ingress: Serve's own proxy{why_not}")
    host = os.environ.get(HOST) if RAY_SERVE_ENABLE_HA_PROXY else None
    if not host:
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        host = (await controller.get_http_config.remote()).host
    behind = os.environ.get(NODE_ADDRESS) if RAY_SERVE_ENABLE_HA_PROXY else None
    for address in filter(None, (host, behind)):  # otherwise nothing listens
        check_open(address, has_keys=has_keys, insecure_no_key=insecure_no_key)
    return host or ""


def is_gateway() -> bool:
    """Whether this process is a Serve replica, and not a proxy."""
    try:
        serve.get_replica_context()
    except RayServeException:
        return False
    return True


def own_server_name() -> str:
    """Of this process, a replica's or a proxy's, in HAProxy's configuration."""
    return server_name(ray.get_runtime_context().get_actor_name() or "")


async def tell_patience(seconds: float) -> None:
    """Leave with Ray's GCS how long a request may wait for a gateway, for proxies that have met
    none.
    """
    await asyncio.to_thread(_internal_kv_put, PATIENCE_KEY, str(seconds).encode(), overwrite=True)


def told_patience() -> float | None:
    """What the last gateway to start has left, in seconds; None if that is not to be had."""
    try:
        told = _internal_kv_get(PATIENCE_KEY)
    except RayError:  # without the GCS
        return None
    return None if told is None else float(told)
