"""Runs steps that need Ray, only as long as Ray answers."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence

import ray

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 2.0


def do_within(steps: Sequence[Callable[[], object]], seconds: float, *, needed: str | None = None) -> None:
    """Run the steps in a thread of their own, which is abandoned after `seconds`, or once nothing
    listens at `needed` any more.

    `needed` is host:port. No step starts without a connection to Ray: Ray would connect to any
    other cluster that it finds on the machine.
    """
    is_wanted = True

    def run() -> None:
        for step in steps:
            if is_wanted and ray.is_initialized():
                # Of any kind: Ray reports the cluster's end like that, and an abandoned step by
                # SystemExit.
                with contextlib.suppress(Exception, SystemExit):
                    step()

    thread = threading.Thread(target=run, name="ending", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline and (needed is None or answers(needed)):
        thread.join(_POLL_SECONDS)
    is_wanted = False


def answers(address: str) -> bool:
    """Whether anything listens at host:port or [host]:port. Of no host of a name that cannot be, as
    `a..b`.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, UnicodeError):
        return False
    return True
