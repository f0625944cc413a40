"""Watches which worker processes are alive: one thread of the driver listens to all their lines.

Every worker sends a sign of life on its line several times a second, from a thread of its own,
whether it loads, computes or idles. Its process is lost when the line ends; when it has been
stopped by a signal for STOPPED_SECONDS (a pause of two seconds does not count yet); or when nothing
was heard for SILENT_SECONDS. Whether it is stopped can be seen only on its own machine: on other
machines we ask another of our processes there, a lookout if there is no other. A worker that merely
lacks processor time sends its signs late, but is neither stopped nor silent for that long. Time
during which the driver itself was stopped does not count: it reads what arrived meanwhile before it
judges.
"""

import math
import selectors
import socket
import threading
import time
from dataclasses import dataclass

from cluster.sockets.connection import ChannelError
from cluster.workers.processes.line import Stopped, decode_word
from cluster.workers.processes.process import WorkerProcess
from cluster.workers.processes.process_state import STOPPED_SECONDS

TICK_SECONDS = 0.2
DOUBT_SECONDS = 0.3  # of silence, after which a neighbour is asked
ANSWER_SECONDS = 0.6  # for which its answer is valid
SILENT_SECONDS = 10.0
LOADING_SECONDS = 120.0  # reading a large tensor blocks a worker's other threads


@dataclass(slots=True)
class Watched:
    """What is known about a process; times are of `time.monotonic()`."""

    process: WorkerProcess
    heard: float
    stopped_since: float | None = None
    seen_stopped: float = -math.inf  # by a neighbour


class Watch:
    """Closes a process' line, and sets its `ended`, when it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the newcomers
        self._newcomers: list[WorkerProcess] = []
        self._is_closing = False
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def add(self, process: WorkerProcess) -> None:
        """Watch an attached process until it ends."""
        with self._lock:
            self._newcomers.append(process)
        self._wake.send(b"\0")

    def close(self) -> None:
        """Stop watching; lines that are still open are closed, which ends their processes."""
        self._is_closing = True
        self._wake.send(b"\0")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._is_closing:
                began = time.monotonic()
                events = selector.select(TICK_SECONDS)
                now = time.monotonic()
                for key, _ in events:
                    if key.data is None:
                        self._woken.recv(64)
                        self._take_newcomers(selector, now)
                    else:
                        self._hear(selector, key.data, now)
                _judge_all(selector, now, slept=now - began - TICK_SECONDS)
            self._take_newcomers(selector, time.monotonic())
            for watched in _all(selector):
                _drop(selector, watched)

    def _take_newcomers(self, selector: selectors.BaseSelector, now: float) -> None:
        with self._lock:
            newcomers, self._newcomers = self._newcomers, []
        for process in newcomers:
            selector.register(process.line, selectors.EVENT_READ, Watched(process, heard=now))

    def _hear(self, selector: selectors.BaseSelector, watched: Watched, now: float) -> None:
        try:
            for frame in watched.process.line.receive():
                if frame:
                    _believe(selector, watched.process, decode_word(frame), now)
            watched.heard, watched.stopped_since, watched.seen_stopped = now, None, -math.inf
        except ChannelError:
            watched.process.lose("its process ended", is_our_doing=False)
            _drop(selector, watched)


def _believe(selector: selectors.BaseSelector, neighbour: WorkerProcess, word: object, now: float) -> None:
    """Record what a process says about another one of its machine."""
    if isinstance(word, Stopped):
        for watched in _all(selector):
            facts = watched.process.facts
            if (facts.machine, facts.pid, facts.start_time) == (neighbour.facts.machine, word.pid, word.start_time):
                watched.seen_stopped = now


def _ask_neighbour(selector: selectors.BaseSelector, doubtful: WorkerProcess, now: float) -> None:
    """Ask a process of the same machine, heard from just now, to look at the doubtful one."""
    for watched in _all(selector):
        is_neighbour = watched.process.facts.machine == doubtful.facts.machine
        if is_neighbour and now - watched.heard < DOUBT_SECONDS:
            watched.process.look_at(doubtful)
            return


def _judge_all(selector: selectors.BaseSelector, now: float, slept: float) -> None:
    """Give up processes that are stopped or silent; `slept`: seconds by which this thread woke
    late.
    """
    for watched in _all(selector):
        if slept > TICK_SECONDS:
            watched.heard = min(watched.heard + slept, now)
        if now - watched.heard >= DOUBT_SECONDS and not watched.process.is_on_this_machine:
            _ask_neighbour(selector, watched.process, now)
        reason = reason_to_lose(watched, now)
        if reason is not None:
            watched.process.lose(reason, is_our_doing=watched.stopped_since is None)
            if not watched.process.is_on_this_machine:  # there the end of the line may take long to be noticed
                _drop(selector, watched)


def reason_to_lose(watched: Watched, now: float) -> str | None:
    """Why the process is lost; None if it is healthy as far as is known."""
    silence = now - watched.heard
    if watched.process.is_stopped or now - watched.seen_stopped <= ANSWER_SECONDS:
        if watched.stopped_since is None:
            watched.stopped_since = now
        if now - watched.stopped_since >= STOPPED_SECONDS:
            return f"stopped by a signal, no sign of life for {silence:.1f} s"
    else:
        watched.stopped_since = None
    limit = LOADING_SECONDS if watched.process.is_loading else SILENT_SECONDS
    return f"no sign of life for {silence:.1f} s" if silence >= limit else None


def _all(selector: selectors.BaseSelector) -> list[Watched]:
    return [key.data for key in selector.get_map().values() if key.data is not None]


def _drop(selector: selectors.BaseSelector, watched: Watched) -> None:
    selector.unregister(watched.process.line)
    watched.process.close()
