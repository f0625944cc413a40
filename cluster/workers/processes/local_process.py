"""A process of this machine that is not our child, held by a pidfd, which stays valid if the
process id is reused.
"""

import contextlib
import os
import signal
import threading
from typing import Self

from cluster.workers.processes.exit_status import wait_for_exit_signal
from cluster.workers.processes.process_state import is_stopped, read_start_time


class LocalProcess:
    """Thread-safe, also after it is closed."""

    def __init__(self, pidfd: int, pid: int, start_time: int) -> None:
        self._pidfd: int | None = pidfd
        self._pid = pid
        self._start_time = start_time
        self._lock = threading.Lock()  # another file may get a closed descriptor's number

    @classmethod
    def find(cls, pid: int, start_time: int) -> Self | None:
        """The process with that id and start time (ticks since boot), if it exists."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        if read_start_time(pid) == start_time:
            return cls(pidfd, pid, start_time)
        os.close(pidfd)
        return None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return is_stopped(self._pid, self._start_time)

    def kill(self) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait_for_exit_signal(self, seconds: float) -> int | None:
        """See `exit_status`. None, too, once it is closed. Not while another thread closes it."""
        return None if self._pidfd is None else wait_for_exit_signal(self._pidfd, seconds)

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
