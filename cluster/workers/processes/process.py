"""A worker's process as the driver sees it: its Ray actor, the line to it that lasts as long as it
lives, and its end.
"""

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

LINE_SECONDS = 10.0  # for the line of a process that has introduced itself: after such a silence it would be lost, too
DOUBT_SECONDS = 5.0  # without a first word, upon which it is looked at, and again
EXIT_SECONDS = 0.5  # for a process whose line has ended to be gone

Role = Literal["worker", "spare", "lookout"]


class ProcessStopped(OSError):
    """A signal has stopped a process that was to lay its line."""


class WorkerProcess:
    """Starts with its actor; `facts` and `line` are there once it is `attach`ed."""

    def __init__(self, placement: Placement, bundle: int, role: Role = "worker") -> None:
        """Have Ray start it in a bundle of the group, of whose resources only a worker takes any: a
        spare none, even in use.
        """
        self.bundle = bundle
        self.is_loading = False  # reads weights: it may be silent for longer
        self.is_seated = False  # has a rank, its weights and a cache
        self.ended = threading.Event()
        self.on_loss: Callable[[str], None] = warn_of_loss  # told once why the process is of no more use
        options = _as_actor(LookoutActor if role == "lookout" else WorkerActor).options(
            num_cpus=placement.num_cpus if role == "worker" else 0,
            num_gpus=placement.num_gpus if role == "worker" else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement.group, bundle),
        )
        self.actor: Any = options.remote()
        self.introduction: Any = self.actor.introduce.remote()  # ready when the process is
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
        """Call it while the introduction is waited for: a process that is stopped meanwhile would
        never say a word.
        """
        if time.monotonic() > self._doubted + DOUBT_SECONDS:
            end_if_frozen(self.actor)
            self._doubted = time.monotonic()

    def attach(self) -> bool:
        """Wait for the process and lay the line; False if that was done before. Raises RayError or
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
                # The call's end is not waited for: once the line is there, the watch sees whatever
                # becomes of the process.
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
        """Of a process that laid no line: it is killed, and whoever waits for its end would wait
        for the line's.
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
        """Whether a signal has stopped it: certain, but known of processes of this machine only."""
        local = self._local
        return local is not None and local.is_stopped

    @property
    def was_killed(self) -> bool:
        """Whether a SIGKILL that was not ours ended it, or a SIGSTOP left no choice; known of
        processes of this machine only.

        Waits a moment for one that is just ending.
        """
        if not self.is_on_this_machine:
            return False
        self.ended.wait(EXIT_SECONDS)
        return self._exit_signal == signal.SIGKILL and not self._is_our_doing

    def abort(self, epoch: int) -> None:
        """Have it get out of whatever collective of that epoch it is in."""
        self._say(Abort(epoch))

    def look_at(self, other: "WorkerProcess") -> None:
        """Have it say on its line whether a signal has stopped the other process, which is of the
        same machine.
        """
        self._say(Look(other.facts.pid, other.facts.start_time))

    def lose(self, reason: str, *, is_our_doing: bool = True) -> None:
        """The process is of no more use: tell why, and see to its end, which is ours unless it has
        ended or is stopped.
        """
        if not self._is_lost:
            self._is_lost = True
            self._is_our_doing = is_our_doing
            self.on_loss(reason)
            self.kill()

    def dismiss(self) -> None:
        """Have Ray end it, which takes a moment; nothing is wrong with it, so nobody is told that
        it died.
        """
        self._is_lost = True
        self._end_by_ray()

    def kill(self) -> None:
        """At once where the process is on this machine: Ray sees it end. Elsewhere by Ray."""
        self._is_lost = True
        local = self._local  # which another thread may forget
        if local is not None:
            local.kill()
        else:
            self._end_by_ray()

    def close(self) -> None:
        """After its end: give the descriptors back."""
        self.line.close()
        if self._local is not None and not self.ended.is_set():
            self._exit_signal = self._local.wait_for_exit_signal(EXIT_SECONDS)
            self._local.close()
        self.ended.set()

    def _say(self, word: Abort | Look) -> None:
        with contextlib.suppress(ConnectionEnded):
            self.line.post(encode_word(word))

    def _end_by_ray(self) -> None:
        """In the background: `ray.kill` has been seen never to return, for an actor that was dying
        already.
        """
        if ray.is_initialized():
            threading.Thread(target=ray.kill, args=(self.actor,), name="kill", daemon=True).start()


@functools.cache
def _as_actor(plain: type) -> Any:
    """Of each class the same: Ray keeps every actor class that it is shown, by a random name, for
    as long as the job lasts.
    """
    return ray.remote(plain)


def warn_of_loss(reason: str) -> None:
    logger.warning("a worker without a rank was lost: %s", reason)
