"""Ray's own processes, where this one has started them: out of the way of signals to our group, and gone when we go."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ray

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 2.0
_SHUTDOWN_SECONDS = 10.0


class RayProcesses:
    """What `ray.init` starts within `starting`."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Every child begun within leads a process group of its own.

        A signal to our group (`timeout` sends one, and a terminal) is for us alone: without Ray nothing can be ended in order.
        """
        before = _children()
        is_open = True
        os.register_at_fork(after_in_child=lambda: os.setpgid(0, 0) if is_open else None)
        try:
            yield
        finally:
            is_open = False
            self._pids = _children() - before

    def shutdown(self) -> None:
        """End them all, in order if that is still possible."""
        attempt(ray.shutdown, _SHUTDOWN_SECONDS)
        for pid in self._pids & _children():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # waited for already
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def attempt(work: Callable[[], object], seconds: float) -> bool:
    """Whether `work` ended well, in a thread of its own, within `seconds` and before the Ray cluster did."""
    is_done = False

    def run() -> None:
        nonlocal is_done
        with contextlib.suppress(Exception):  # of whatever kind: Ray's way of saying that the cluster ends
            work()
            is_done = True

    address = ray.get_runtime_context().gcs_address if ray.is_initialized() else None
    thread = threading.Thread(target=run, name="ending", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline and (address is None or _answers(address)):
        thread.join(_POLL_SECONDS)
    return is_done


def _answers(address: str) -> bool:
    """Whether anything listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _children() -> set[int]:
    """Process ids of our children, those that have ended and were not waited for included."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # After the name, which may hold anything but ends with the last parenthesis: state, parent, ...
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(folder.name))
    return found
