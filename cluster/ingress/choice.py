"""Whether HAProxy or Serve's own proxy listens, and what Serve must be told for it."""

import contextlib
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import ray

from cluster.api.proxy import CONTROLLER_OPTIONS
from cluster.ingress import haproxy
from cluster.sockets import LOOPBACK
from engine.errors import InvalidConfig

Wish = Literal["auto", "haproxy", "proxy"]
WISHES: tuple[Wish, ...] = get_args(Wish)
DEFAULT_WISH: Wish = "auto"
PROGRAM = Path(haproxy.__file__).resolve()
MAX_CONNECTIONS = 20_000
FILES_BESIDE = 500  # that HAProxy opens beside two for each connection
RUN_SECONDS = 20.0  # for HAProxy to tell its version
MAX_THREADS = 4  # of HAProxy; one carries some 80,000 tokens a second
FOREVER_SECONDS = 86_400  # requests have limits of their own; an old HAProxy ends with its last stream
FALLBACK_PORTS = range(8500, 8600)  # for Serve's own proxy, to which requests go while there is no gateway
BUFFER_BYTES = 128 << 10  # per direction of a connection; a request that fits can be sent to another gateway
ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Beside HAProxy two of Serve's processes start; one that takes longer is ended.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # by a log line per request, parsed in Python
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(BUFFER_BYTES),
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "5",  # a process that dies may take connections for a moment, and drop them
    # A gateway that refuses a connection is left at once; one that is gone without a word, within
    # two seconds.
    "RAY_SERVE_HAPROXY_OBSERVE_ERROR_LIMIT": "1",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_RISE": "1",
    "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": "2",
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": str(FOREVER_SECONDS),
    "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": str(FOREVER_SECONDS),
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(FOREVER_SECONDS),
    "RAY_SERVE_PORT_QUARANTINE_S": "60",  # an old HAProxy takes no new requests
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # until HAProxy knows that a gateway ends
}


@dataclass(frozen=True, slots=True)
class Ingress:
    """What listens on host:port, and why."""

    name: Literal["haproxy", "proxy"]
    why: str  # it is not HAProxy; "" if it is, or if that was not wanted
    serve_host: str  # what Serve is told to listen on
    environment: dict[str, str]  # of Serve's controller, which its proxies and replicas inherit

    @property
    def report(self) -> str:
        """For the console."""
        if self.name == "haproxy":
            return "Ingress: HAProxy"
        return f"Ingress: Serve's own proxy{self.why and f', not HAProxy: {self.why}'}"

    @property
    def controller_options(self) -> dict[str, dict[str, dict[str, str]]]:
        """For `serve.start`."""
        env_vars = CONTROLLER_OPTIONS["runtime_env"]["env_vars"] | self.environment
        return {"runtime_env": {"env_vars": env_vars}}


@contextlib.contextmanager
def listening(wish: Wish, host: str) -> Iterator[Ingress]:
    """What is to listen on `host`, on the cluster this process is connected to; with HAProxy the
    gateways are on loopback. HAProxy's files are removed with the context. Raises InvalidConfig if
    the wish cannot be met.
    """
    reason = "" if wish == "proxy" else why_not_haproxy()
    if wish == "haproxy" and reason:
        raise InvalidConfig(f"ingress=haproxy cannot be had: {reason}")
    if wish == "proxy" or reason:
        yield Ingress("proxy", reason, host, {})
        return
    # Its name is short because a socket's path has at most 107 bytes, 57 of them Serve's.
    with tempfile.TemporaryDirectory(prefix="squadron-h-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Ingress("haproxy", "", LOOPBACK, ENVIRONMENT | _of_this_cluster(host, Path(folder)))


def why_not_haproxy() -> str:
    """Why the cluster this process is connected to cannot have it; "" if it can."""
    if not sys.platform.startswith("linux"):
        return f"it is for Linux, and this is {sys.platform}"
    if len([node for node in ray.nodes() if node["Alive"]]) > 1 or ray.util.client.ray.is_connected():
        return "that is for a cluster of this machine alone; on others Serve's configuration asks for it"
    try:
        program = haproxy.haproxy_program()
        subprocess.run([program, "-v"], check=True, capture_output=True, timeout=RUN_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


def _of_this_cluster(host: str, folder: Path) -> dict[str, str]:
    launcher = folder / "haproxy"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -E -s {PROGRAM} "$@"\n')
    launcher.chmod(0o700)
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        haproxy.HOST: host,
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(MAX_THREADS, max(1, (os.cpu_count() or 1) // 4))),
        "RAY_SERVE_HAPROXY_MAXCONN": str(min(MAX_CONNECTIONS, (num_files - FILES_BESIDE) // 2)),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(_free_port()),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "c"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "s"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "m"),
    }


def _free_port() -> int:
    for port in random.sample(FALLBACK_PORTS, len(FALLBACK_PORTS)):
        try:
            socket.create_server((LOOPBACK, port)).close()
        except OSError:
            continue
        return port
    raise InvalidConfig(f"every port from {FALLBACK_PORTS[0]} to {FALLBACK_PORTS[-1]} is taken")
