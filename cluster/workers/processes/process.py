"""A worker's process as the driver sees it: its Ray actor, its line, and how it ended."""

import contextlib
import functools
import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.sockets.connection import Connection, ConnectionEnded
from cluster.sockets.listener import Listener
from cluster.workers.placement import Placement
from cluster.workers.processes.accepting import LOOK_SECONDS, accept_from
from cluster.workers.processes.actor import Facts, LookoutActor, WorkerActor, read_facts
from cluster.workers.processes.line import Abort, Look, encode_word
from cluster.workers.processes.local_process import LocalProcess
from cluster.workers.processes.newborn import end_if_frozen
from cluster.workers.processes.process_state import STOPPED_SECONDS

logger = logging.getLogger("squadron.executor")

LINE_SECONDS = 10.0  # for a started process to open its line: a process that silent would be lost, too
DOUBT_SECONDS = 5.0  # without a first message, after which it is checked, and again
EXIT_SECONDS = 0.5  # for a process to be gone after its line has ended

Role = Literal["worker", "spare", "lookout"]


class ProcessStopped(OSError):
    """A process was stopped by a signal before it opened its line."""


class WorkerProcess:
    """Its actor starts at once; `facts` and `line` exist once it is `attach`ed."""

    def __init__(self, placement: Placement, bundle: int, role: Role = "worker") -> None:
        """Have Ray start it in a bundle of the group. Only workers take the bundle's resources;
        spares take none, even once they are used.
        """
        self.bundle = bundle
        self.is_loading = False  # is reading weights, and may be silent for longer
        self.is_seated = False  # has a rank, its weights and a cache
        self.ended = threading.Event()
        self.on_loss: Callable[[str], None] = warn_of_loss  # called once, with the reason, when the process is lost
        options = _as_actor(LookoutActor if role == "lookout" else WorkerActor).options(
            num_cpus=placement.num_cpus if role == "worker" else 0,
            num_gpus=placement.num_gpus if role == "worker" else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement.group, bundle),
        )
        self.actor: Any = options.remote()
        self.introduction: Any = self.actor.introduce.remote()  # a call that returns when the process is ready
        self._doubted = time.monotonic()
        self.facts: Facts
        self.line: Connection
        self._local: LocalProcess | None = None  # if it is of this machine
        self._attaching = threading.Lock()
        self.is_attached = False
        self._is_lost = False
        self._is_our_doing = False
        self._exit_signal: int | None = None

    def doubt(self) -> None:
        """Must be called while its introduction is awaited: a process that is stopped meanwhile
        would never report.
        """
        if time.monotonic() > self._doubted + DOUBT_SECONDS:
            end_if_frozen(self.actor)
            self._doubted = time.monotonic()

    def attach(self) -> bool:
        """Wait for the process and open its line; False if that was done before. Raises RayError or
        OSError.
        """
        with self._attaching:
            if self.is_attached:
                return False
            self.facts = ray.get(self.introduction)
            is_on_this_node = self.facts.node_id == ray.get_runtime_context().get_node_id()
            listener = Listener(None if is_on_this_node else ray.util.get_node_ip_address())
            if self.facts.machine == read_facts("", "").machine:
                self._local = LocalProcess.find(self.facts.pid, self.facts.start_time)
            try:
                # Not waited for: once the line is open, the watch notices whatever happens to the
                # process.
                self.line = self._accept_line(listener, self.actor.hold_line.remote(listener.address, listener.token))
            except BaseException:
                self._forget()
                raise
            finally:
                listener.close()
            self.is_attached = True
            return True

    def _accept_line(self, listener: Listener, holding: Any) -> Connection:
        """Raises ProcessStopped, another OSError, or RayError."""
        began = seen_running = time.monotonic()
        while True:
            try:
                _, line = accept_from(listener, [holding], time.monotonic() + LOOK_SECONDS, ray.get)
                return line
            except TimeoutError:
                now = time.monotonic()
                if not self.is_stopped:
                    seen_running = now
                if now > seen_running + STOPPED_SECONDS:
                    raise ProcessStopped(f"process {self.facts.pid} is stopped by a signal") from None
                if now > began + LINE_SECONDS:
                    raise

    def _forget(self) -> None:
        """Kill a process that opened no line, and let nobody wait for its end, which only a line
        would show.
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
        self._end_by_ray()

    def kill(self) -> None:
        """At once if the process is on this machine; otherwise through Ray."""
        self._is_lost = True
        local = self._local  # which another thread may forget
        if local is not None:
            local.kill()
        else:
            self._end_by_ray()

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

    def _end_by_ray(self) -> None:
        """In the background: `ray.kill` was seen never to return, for an actor that was already
        dying.
        """
        if ray.is_initialized():
            threading.Thread(target=ray.kill, args=(self.actor,), name="kill", daemon=True).start()


@functools.cache
def _as_actor(plain: type) -> Any:
    """Cached per class: Ray keeps every actor class that it is given, under a random name, as long
    as the job lasts.
    """
    return ray.remote(plain)


def warn_of_loss(reason: str) -> None:
    logger.warning("a worker without a rank was lost: %s", reason)
