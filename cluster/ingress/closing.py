"""Closes HAProxy's port without a broken connection, from within the process of Serve's manager."""

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

from cluster.api.edge.server import ACCEPT_SECONDS, LINGER_SECONDS, begin_no_connection
from cluster.ingress.haproxy import CLOSED
from cluster.ingress.haproxy_configuration import FRONTEND

SECONDS = 2.0  # for an answer of HAProxy's
POLL_SECONDS = 0.05
MAX_LISTENERS = 64
_closed = threading.Event()  # of this process, which manages one HAProxy


def is_haproxy_manager(actor: object) -> bool:
    return hasattr(actor, "_haproxy")


def close_haproxy(manager: Any) -> None:
    """Begin to close, as `__ray_call__` of the manager's actor calls it."""
    configuration = Path(manager._haproxy.config_file_path)
    (configuration.parent / CLOSED).touch()  # Serve's next change of the gateways must not open it again
    threading.Thread(target=_close, args=[manager._haproxy.cfg.socket_path], name="closing", daemon=True).start()


def is_haproxy_closed(_manager: object) -> bool:
    return _closed.is_set()


def _close(path: str) -> None:
    """In the order of `ProxyServer.shutdown`."""
    with contextlib.suppress(OSError):
        listeners = _listeners(path)
        for listener in listeners:
            begin_no_connection(listener)
        time.sleep(ACCEPT_SECONDS)
        ask(path, f"shutdown frontend {FRONTEND}")
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)  # HAProxy keeps it open for a successor
            listener.close()
        time.sleep(LINGER_SECONDS)  # requests of connected clients; HAProxy closes each connection after its answer
        while _num_requests(path):
            time.sleep(POLL_SECONDS)
    _closed.set()


def ask(path: str, command: str) -> str:
    """The answer of HAProxy, which listens at this path; raises OSError."""
    with _connected(path) as connection:
        connection.sendall(f"{command}\n".encode())
        told = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode(errors="replace")
    if not told.endswith("\n"):
        raise ConnectionError(f"HAProxy has ended before it answered: {command}")
    return told


def _num_requests(path: str) -> int:
    """Requests that gateways are answering."""
    names, *rows = (line.split(",") for line in ask(path, "show stat").lstrip("# ").splitlines() if line)
    name, sessions = names.index("svname"), names.index("scur")
    return sum(int(row[sessions]) for row in rows if row[name] == "BACKEND")


def _listeners(path: str) -> list[socket.socket]:
    """HAProxy's own TCP sockets, which it gives to its successor."""
    with _connected(path) as connection:
        connection.sendall(b"_getsocks\n")
        num_sockets = int.from_bytes(connection.recv(4), "little", signed=True)
        if num_sockets < 1:
            return []
        _, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, MAX_LISTENERS)
        connection.sendall(len(descriptors).to_bytes(4, "little"))
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for each in sockets:
        if each.family not in (socket.AF_INET, socket.AF_INET6):
            each.close()
    return [each for each in sockets if each.fileno() != -1]


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(SECONDS)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
