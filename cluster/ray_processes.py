"""Ray's own processes, where this one has started them: out of the way of signals to our group, and gone when we go."""

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import ray

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 2.0
_SHUTDOWN_SECONDS = 10.0
_KILL_SECONDS = 5.0


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
        """End them all and what they have started, in order if that is still possible; returns when they have gone."""
        attempt([ray.shutdown], _SHUTDOWN_SECONDS)
        deadline = time.monotonic() + _KILL_SECONDS
        while any([_kill_group(pid) for pid in self._pids]) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 10)


def attempt(steps: Sequence[Callable[[], object]], seconds: float, *, cluster: str | None = None) -> None:
    """Do the steps in a thread of their own, which is left alone after `seconds` or once the Ray cluster at `cluster` has gone.

    No step begins without a connection to Ray: Ray would connect to whatever other cluster it finds on the machine.
    """
    is_wanted = True

    def run() -> None:
        for step in steps:
            if is_wanted and ray.is_initialized():
                with contextlib.suppress(Exception):  # of whatever kind: Ray's way of saying that the cluster ends
                    step()

    thread = threading.Thread(target=run, name="ending", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline and (cluster is None or answers(cluster)):
        thread.join(_POLL_SECONDS)
    is_wanted = False


def remove_folder(folder: Path) -> None:
    """Remove Ray's folder, into which Ray within this process may still be writing."""
    deadline = time.monotonic() + _KILL_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_POLL_SECONDS / 10)


def _kill_group(leader: int) -> bool:
    """Whether anybody was left in the process group; the leader, a child of ours, is waited for."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(leader, os.WNOHANG)
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def answers(address: str) -> bool:
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
