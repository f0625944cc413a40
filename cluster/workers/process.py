"""A worker's process as the driver sees it: its Ray actor, the line to it that lasts as long as it
lives, and its end.
"""

import contextlib
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.workers.actor import Facts, LookoutActor, WorkerActor, read_facts
from cluster.workers.channel import Connection, ConnectionEnded
from cluster.workers.exit_status import wait_for_exit_signal
from cluster.workers.line import Abort, Look, encode_word
from cluster.workers.listener import Listener
from cluster.workers.newborn import end_if_frozen
from cluster.workers.placement import Placement
from cluster.workers.process_state import STOPPED_SECONDS, is_stopped, read_start_time

logger = logging.getLogger("squadron.executor")

CONNECT_SECONDS = 30.0
LINE_SECONDS = 10.0  # for the line of a process that has introduced itself: after such a silence it would be lost, too
LOOK_SECONDS = 0.2  # between two looks whether the process that is to connect has died
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
        self._pidfd: int | None = None
        self._attaching = threading.Lock()
        self._closing = threading.Lock()
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
            self._pidfd = _open_pidfd(self.facts)
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
        with self._closing:
            if self._pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                os.close(self._pidfd)
                self._pidfd = None

    @property
    def is_lost(self) -> bool:
        return self._is_lost or self.ended.is_set()

    @property
    def is_on_this_machine(self) -> bool:
        return self._pidfd is not None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it: certain, but known of processes of this machine only."""
        return self.is_on_this_machine and is_stopped(self.facts.pid, self.facts.start_time)

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
        with self._closing:
            if self._pidfd is not None:
                if not self.ended.is_set():
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                return
        self._end_by_ray()

    def close(self) -> None:
        """After its end: give the descriptors back."""
        self.line.close()
        if self._pidfd is not None and not self.ended.is_set():
            self._exit_signal = wait_for_exit_signal(self._pidfd, EXIT_SECONDS)
        with self._closing:
            if self._pidfd is not None and not self.ended.is_set():
                os.close(self._pidfd)
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


def accept_from(
    listener: Listener, calls: Sequence[Any], deadline: float, result: Callable[[Any], object]
) -> tuple[str, Connection]:
    """The next connection that one of these calls to actors makes, and its name.

    Raises what `result` makes of the first call that has failed instead, or TimeoutError at
    `deadline` (time.monotonic).
    """
    while True:
        try:
            return listener.accept(min(time.monotonic() + LOOK_SECONDS, deadline))
        except TimeoutError:
            ended, _ = ray.wait(list(calls), timeout=0)
            if ended:
                result(ended[0])
            if time.monotonic() > deadline:
                raise


def _open_pidfd(facts: Facts) -> int | None:
    """A handle of the process, if it is one of this machine; it stays the process', should the
    number be used again.
    """
    if facts.machine != read_facts("", "").machine:
        return None
    try:
        pidfd = os.pidfd_open(facts.pid)
    except OSError:
        return None
    if read_start_time(facts.pid) == facts.start_time:
        return pidfd
    os.close(pidfd)
    return None
