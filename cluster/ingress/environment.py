"""What Serve's processes on a machine are told, so that HAProxy listens there.

Imports Python's own library and ours alone: it is also read where Ray is about to be started.
"""

import contextlib
import os
import random
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cluster.ingress import haproxy
from engine.errors import InvalidConfig

ENABLE = "RAY_SERVE_ENABLE_HA_PROXY"
ROOT = Path(haproxy.__file__).resolve().parents[2]
_START = "import sys; sys.path.insert(0, {!r}); from cluster.ingress import haproxy; haproxy.main(sys.argv[1:])"
# What Serve runs as HAProxy; -E, -s and -P: whatever the user's environment and folders hold.
PROGRAM = [sys.executable, "-E", "-s", "-P", "-c", _START.format(str(ROOT))]
PLACE = "/tmp"  # has a folder with HAProxy's files, and with the program that Serve starts
MAX_CONNECTIONS = 20_000
FILES_BESIDE = 500  # that HAProxy opens beside two for each connection
LEAST_FILES = 2 * FILES_BESIDE  # with fewer it has next to no connections, or does not start
RUN_SECONDS = 20.0  # for HAProxy to tell its version
MAX_THREADS = 4  # of HAProxy; one carries some 80,000 tokens a second
FOREVER_SECONDS = 86_400  # requests have limits of their own; an old HAProxy ends with its last stream
FALLBACK_PORT = "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"
FALLBACK_PORTS = range(8500, 8600)  # for Serve's own proxy, to which requests go while there is no gateway
BUFFER_BYTES = 128 << 10  # per direction of a connection; a request that fits can be sent to another gateway
ENVIRONMENT = {
    ENABLE: "1",
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


def why_not_here() -> str:
    """Why HAProxy cannot run on this machine; "" if it can."""
    if not sys.platform.startswith("linux"):
        return f"it is for Linux, and this is {sys.platform}"
    try:
        program = haproxy.haproxy_program()
        subprocess.run([program, "-v"], check=True, capture_output=True, timeout=RUN_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if os.statvfs(PLACE).f_flag & os.ST_NOEXEC:
        return f"Serve starts it by a program in {PLACE}, where none may be executed (noexec)"
    if (num_files := _num_files()) < LEAST_FILES:
        return f"it needs {LEAST_FILES} open files, and a process may have {num_files} here (ulimit -n)"
    return ""


def environment_of(folder: Path, fallback_port: int) -> dict[str, str]:
    """The variables, of ours and of Serve's, on this machine. HAProxy's files will be in `folder`,
    which is private; `fallback_port` is Serve's own proxy's, see `reserved_port`.
    """
    launcher = folder / "haproxy"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    launcher.chmod(0o700)
    return ENVIRONMENT | {
        haproxy.PROGRAM: haproxy.haproxy_program(),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(MAX_THREADS, max(1, (os.cpu_count() or 1) // 4))),
        "RAY_SERVE_HAPROXY_MAXCONN": str(min(MAX_CONNECTIONS, (_num_files() - FILES_BESIDE) // 2)),
        FALLBACK_PORT: str(fallback_port),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "c"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "s"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "m"),
    }


def _num_files() -> int:
    """That a process which is started from here may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@contextlib.contextmanager
def reserved_port(address: str) -> Iterator[int]:
    """One of FALLBACK_PORTS, on an address that gateways listen on. As long as the context lasts no
    one else is given it, although Serve's proxy does not listen yet: two proxies would share it.
    Raises InvalidConfig.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as other:
            other.bind((address, 0))
    except OSError as error:
        raise InvalidConfig(f"nothing can listen on {address} here: {error.strerror}") from None
    with socket.socket(family) as reservation:
        for port in random.sample(FALLBACK_PORTS, len(FALLBACK_PORTS)):
            with contextlib.suppress(OSError):
                reservation.bind((address, port))
                break
        else:
            raise InvalidConfig(f"every port of {address} from {FALLBACK_PORTS[0]} to {FALLBACK_PORTS[-1]} is taken")
        # Nobody had it, shared or not. Now Serve's proxy may join, which sets this as well; this
        # socket never listens, so that all connections are the proxy's.
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield port
