"""Chooses between HAProxy and Serve's own proxy, and configures Serve for it."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import ray

from cluster.certificate import NO_CERTIFICATE, CertificateFiles
from cluster.ingress.environment import ENABLE, PLACE, environment_of, reserved_port, why_not_here
from cluster.ingress.haproxy import HOST, LOG_FORMAT, NODE_ADDRESS
from cluster.ingress.ingress import Ingress
from cluster.sockets import LOOPBACK
from engine.errors import InvalidConfig

Wish = Literal["auto", "haproxy", "proxy"]
WISHES: tuple[Wish, ...] = get_args(Wish)
DEFAULT_WISH: Wish = "auto"


@contextlib.contextmanager
def listening(
    wish: Wish, host: str, certificate: CertificateFiles | None = None, log_format: str = "text"
) -> Iterator[Ingress]:
    """What is to listen on `host`, on the cluster this process is connected to, with a
    `certificate` by TLS; with HAProxy the gateways are on loopback. HAProxy's files are removed
    with the context. Raises InvalidConfig if the wish cannot be met.
    """
    tls = (certificate or NO_CERTIFICATE).environment
    reason = "" if wish == "proxy" else why_not_haproxy()
    if wish == "haproxy":
        check_haproxy(reason)
    if wish == "proxy" or reason:
        yield Ingress("proxy", reason, host, {ENABLE: "0"} | tls)
        return
    # Its name is short because a socket's path has at most 107 bytes, 57 of them Serve's.
    temporary = tempfile.TemporaryDirectory(prefix="squadron-h-", dir=PLACE, ignore_cleanup_errors=True)
    with temporary as folder, reserved_port(LOOPBACK) as port:
        # Gateways listen where they are told to: there is no other node.
        ours = {HOST: host, NODE_ADDRESS: "", LOG_FORMAT: log_format}
        environment = environment_of(Path(folder), port) | ours | tls
        yield Ingress("haproxy", "", LOOPBACK, environment)


def check_haproxy(reason: str) -> None:
    """Raises InvalidConfig if there is a reason why it cannot be had."""
    if reason:
        raise InvalidConfig(f"ingress=haproxy cannot be had: {reason}")


def why_not_haproxy() -> str:
    """Why the cluster this process is connected to cannot have it; "" if it can."""
    if len([node for node in ray.nodes() if node["Alive"]]) > 1 or ray.util.client.ray.is_connected():
        return "that is for a cluster of this machine alone; on others Serve's configuration asks for it"
    return why_not_here()
