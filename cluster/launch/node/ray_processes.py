"""Ray's own processes, if this process started them: notices their death, keeps signals to our
process group from them, and ends them with this process.
"""

import contextlib
import os
import secrets
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.launch.node.ending import end_connection
from cluster.launch.node.within import do_within
from cluster.workers.processes.process_state import read_stat
from engine.errors import ClusterLost

MARK = "SQUADRON_RAY_CLUSTER"  # in the environment of every process of a cluster: identifies the cluster
_VITAL = {"raylet": "raylet", "gcs_server": "GCS"}  # programs without which nothing can be replaced, and their names
_STDERR = 2  # where Ray's library writes, even if Python replaced sys.stderr
_POLL_SECONDS = 0.2
_SHUTDOWN_SECONDS = 10.0
_KILL_SECONDS = 5.0


class RayProcesses:
    """The processes that `ray.init` starts within `starting`, and all their descendants."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self._groups: set[int] = set()  # of processes
        self._vital: dict[int, tuple[str, int]] = {}  # by pidfd: the program, its process id
        self._stderr: int | None = None  # our stderr, kept while Ray's is silenced after the cluster was lost

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Every child started within the context leads a process group of its own. A signal to our
        group (from `timeout` or a terminal) then reaches only us: without Ray nothing could be
        ended in order.
        """
        is_open = True
        os.register_at_fork(after_in_child=lambda: os.setpgid(0, 0) if is_open else None)
        os.environ[MARK] = self._mark
        try:
            yield
            self._vital = {os.pidfd_open(pid): (name, pid) for pid in self._find() if (name := _program(pid)) in _VITAL}
        finally:
            is_open = False
            del os.environ[MARK]
            for pid in self._find():
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    self._groups.add(os.getpgid(pid))
            self._groups.discard(os.getpgrp())

    def wait_for_loss(self) -> ClusterLost:
        """Wait until a process has died without which no other one can be replaced. Our processes
        keep serving: they need neither Ray's GCS nor its raylet. But a GCS whose raylet is dead
        would declare the whole node dead within seconds, so it is killed, and running requests can
        be finished.
        """
        poll = select.poll()  # select.select takes no descriptors above 1023
        for pidfd in self._vital:
            poll.register(pidfd, select.POLLIN)
        (dead, _), *_ = poll.poll()
        self._silence()
        for pidfd, (name, _) in self._vital.items():
            if name == "gcs_server":
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        name, pid = self._vital[dead]
        return ClusterLost(f"Ray's {_VITAL[name]} (process {pid}) has died")

    def shutdown(self) -> None:
        """End them all, in order if that is still possible; returns when they are gone."""
        if self._stderr is not None:  # lost: Ray's library in this process would wait for answers
            self._kill()
        do_within([end_connection], _SHUTDOWN_SECONDS)
        self._kill()
        for pidfd in self._vital:
            os.close(pidfd)
        if self._stderr is not None:
            os.dup2(self._stderr, _STDERR)
            os.close(self._stderr)

    def _silence(self) -> None:
        """Otherwise Ray's library in this process would report every failed call on stderr."""
        self._stderr = os.dup(_STDERR)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), _STDERR)

    def _kill(self) -> None:
        deadline = time.monotonic() + _KILL_SECONDS
        while (pids := self._find()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS / 10)

    def _find(self) -> list[int]:
        """Processes of this cluster that have not ended, including those whose parent has. Workers
        have process groups of their own, and the mark; Ray's agents have overwritten the mark with
        their title, and are in the raylet's group.
        """
        line = f"{MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
                pid = int(folder.name)
                state, _, group = read_stat(pid)[:3]
                is_ours = int(group) in self._groups or line in (folder / "environ").read_bytes().split(b"\0")
                if is_ours and state not in "ZX":
                    found.append(pid)
        return found


def dead_raylets() -> set[int]:
    """Those that this process has started and that have ended, by process id."""
    dead, parent = set(), str(os.getpid())
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if (folder / "comm").read_bytes() == b"raylet\n" and read_stat(int(folder.name))[:2] == ["Z", parent]:
                dead.add(int(folder.name))
    return dead


def _program(pid: int) -> str:
    """The file name of a process' program."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""
