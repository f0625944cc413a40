"""A worker's process as the driver sees it: its Ray actor, its line, and how it ended."""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable

from cluster.sockets.connection import Connection, ConnectionEnded
from cluster.workers.placement import Placement
from cluster.workers.processes.accepting import accept_line
from cluster.workers.processes.line import Abort, Look, encode_word
from cluster.workers.processes.local_process import LocalProcess
from cluster.workers.processes.process_state import Facts, read_facts
from cluster.workers.processes.started import Role, StartedActor

logger = logging.getLogger("squadron.executor")

EXIT_SECONDS = 0.5  # for a process to be gone after its line has ended


class ProcessStopped(OSError):
    """A process was stopped by a signal before it opened its line."""


class WorkerProcess:
    """Its actor starts at once; `facts` and `line` exist once it is `attach`ed."""

    def __init__(self, placement: Placement, bundle: int, role: Role = "worker") -> None:
        """Have Ray start it in a bundle of the group: see `StartedActor`."""
        self.bundle = bundle
        self.is_loading = False  # is reading weights, and may be silent for longer
        self.is_seated = False  # has a rank, its weights and a cache
        self.ended = threading.Event()
        self.on_loss: Callable[[str], None] = warn_of_loss  # called once, with the reason, when the process is lost
        self.started = StartedActor(placement, bundle, role)
        self.actor = self.started.handle
        self.facts: Facts
        self.line: Connection
        self._local: LocalProcess | None = None  # if it is of this machine
        self._attaching = threading.Lock()
        self.is_attached = False
        self._is_lost = False
        self._is_our_doing = False
        self._exit_signal: int | None = None

    def attach(self) -> bool:
        """Wait for the process and open its line; False if that was done before. Raises RayError or
        OSError.
        """
        with self._attaching:
            if self.is_attached:
                return False
            self.facts = self.started.facts()
            if self.facts.machine == read_facts("", "").machine:
                self._local = LocalProcess.find(self.facts.pid, self.facts.start_time)
            try:
                self.line = self._open_line()
            except BaseException:
                self._forget()
                raise
            self.is_attached = True
            return True

    def _open_line(self) -> Connection:
        """Raises ProcessStopped, another OSError, or RayError."""
        line = accept_line(self.actor, self.facts.node_id, lambda: self.is_stopped)
        if line is None:
            raise ProcessStopped(f"process {self.facts.pid} is stopped by a signal")
        return line

    def _forget(self) -> None:
        """Kill a process that opened no line, and forget it: its end must not be awaited, since
        only a line would show it.
        """
        if self._local is not None:
            self._local.kill()
            self._local.close()
            self._local = None

    @property
    def is_lost(self) -> bool:
        return self._is_lost or self.ended.is_set()

    @property
    def is_on_this_machine(self) -> bool:
        return self._local is not None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it; False for processes of other machines, of which it is
        not known.
        """
        local = self._local
        return local is not None and local.is_stopped

    @property
    def was_killed(self) -> bool:
        """Whether it ended by a SIGKILL that was not ours, or was killed by us because of a
        SIGSTOP; known only of processes of this machine. Waits a moment for one that is just
        ending.
        """
        if not self.is_on_this_machine:
            return False
        self.ended.wait(EXIT_SECONDS)
        return self._exit_signal == signal.SIGKILL and not self._is_our_doing

    def abort(self, epoch: int) -> None:
        """Tell it to leave any collective of that epoch."""
        self._say(Abort(epoch))

    def look_at(self, other: "WorkerProcess") -> None:
        """Ask it, on its line, whether a signal has stopped the other process, which is on the same
        machine.
        """
        self._say(Look(other.facts.pid, other.facts.start_time))

    def lose(self, reason: str, *, is_our_doing: bool = True) -> None:
        """Give the process up: report why, and kill it. `is_our_doing` is False if it had ended or
        was stopped before.
        """
        if not self._is_lost:
            self._is_lost = True
            self._is_our_doing = is_our_doing
            self.on_loss(reason)
            self.kill()

    def dismiss(self) -> None:
        """Have Ray end a healthy process, which takes a moment; no loss is reported."""
        self._is_lost = True
        self.started.end()

    def kill(self) -> None:
        """At once if the process is on this machine; otherwise through Ray."""
        self._is_lost = True
        local = self._local  # which another thread may forget
        if local is not None:
            local.kill()
        else:
            self.started.end()

    def close(self) -> None:
        """After its end: close the descriptors."""
        self.line.close()
        if self._local is not None and not self.ended.is_set():
            self._exit_signal = self._local.wait_for_exit_signal(EXIT_SECONDS)
            self._local.close()
        self.ended.set()

    def _say(self, word: Abort | Look) -> None:
        with contextlib.suppress(ConnectionEnded):
            self.line.post(encode_word(word))


def warn_of_loss(reason: str) -> None:
    logger.warning("a worker without a rank was lost: %s", reason)
