"""Which worker processes are alive: one thread of the driver that listens to the lines of all of them, at any time.

Every worker says a word on its line several times a second, from a thread of its own, whether it loads, computes or idles. Its
process is lost when the line ends; when it has been stopped by a signal for STOPPED_SECONDS, which can be seen of processes of
this machine (a pause of two seconds is none yet); or when nothing was heard for SILENT_SECONDS. A worker that is merely
starved of processor time says its words late, but is neither stopped nor silent for that long. What the driver itself
sleeps through does not count: it hears what was said meanwhile before it judges.
"""

import selectors
import socket
import threading
import time
from dataclasses import dataclass

from cluster.channel import ChannelError
from cluster.worker_process import WorkerProcess

TICK_SECONDS = 0.2
STOPPED_SECONDS = 2.4
SILENT_SECONDS = 10.0
LOADING_SECONDS = 120.0  # reading a large tensor keeps a worker's other threads from running


@dataclass(slots=True)
class Watched:
    """What is known of a process; times are of `time.monotonic()`."""

    process: WorkerProcess
    heard: float
    stopped_since: float | None = None


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
            watched.process.line.receive()
            watched.heard, watched.stopped_since = now, None
        except ChannelError:
            watched.process.lose("its process ended", is_our_doing=False)
            _drop(selector, watched)


def _judge_all(selector: selectors.BaseSelector, now: float, slept: float) -> None:
    """Lose those that are stopped or silent; `slept`: seconds by which this thread woke late."""
    for watched in _all(selector):
        if slept > TICK_SECONDS:
            watched.heard = min(watched.heard + slept, now)
        reason = reason_to_lose(watched, now)
        if reason is not None:
            watched.process.lose(reason, is_our_doing=watched.stopped_since is None)
            if not watched.process.is_on_this_machine:  # there the end of the line may be long in coming
                _drop(selector, watched)


def reason_to_lose(watched: Watched, now: float) -> str | None:
    """Why the process is of no more use; None if it is all right, as far as can be told."""
    silence = now - watched.heard
    if watched.process.is_stopped:
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
