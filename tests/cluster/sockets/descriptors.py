"""Descriptors above those that `select.select` takes."""

import contextlib
import fcntl
import os
import resource
import socket
from collections.abc import Iterator

FIRST = 1024


@contextlib.contextmanager
def beyond_select() -> Iterator[None]:
    """Whatever this process opens meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * FIRST, hard))
    try:
        with contextlib.ExitStack() as stack:
            while (descriptor := os.open(os.devnull, os.O_RDONLY)) < FIRST:
                stack.callback(os.close, descriptor)
            os.close(descriptor)
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
