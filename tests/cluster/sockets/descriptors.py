"""Sockets whose descriptors are above those that `select.select` takes."""

import contextlib
import fcntl
import resource
import socket
from collections.abc import Iterator

FIRST = 1024


@contextlib.contextmanager
def pair_beyond_select() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Only the first of the two is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * FIRST, hard))
    try:
        near, far = socket.socketpair()
        with far, socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD, FIRST)) as high:
            near.close()
            yield high, far
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
