"""Waits for workers to connect, and for failures of the calls that make them connect."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from cluster.sockets.connection import Connection
from cluster.sockets.listener import Listener
from cluster.workers.processes.process_state import STOPPED_SECONDS
from cluster.workers.ray_errors import result_of
from engine.errors import WorkerLost

CONNECT_SECONDS = 30.0
LINE_SECONDS = 10.0  # for a started process to open its line: a process that silent would be lost, too
LOOK_SECONDS = 0.2  # between checks whether the process that should connect has died or is stopped


@contextmanager
def listening(node_ids: Iterable[str]) -> Iterator[Listener]:
    """A listener for processes of these nodes: on a Unix socket if all are on this node."""
    here = ray.get_runtime_context().get_node_id()
    is_here = all(node_id == here for node_id in node_ids)
    listener = Listener(None if is_here else ray.util.get_node_ip_address())
    try:
        yield listener
    finally:
        listener.close()


def accept_ranks(listener: Listener, runs: list[Any]) -> list[Connection]:
    """One connection per rank, in order of rank; `runs` are the calls to their actors. Raises
    InvalidConfig or WorkerLost.
    """
    connections: dict[int, Connection] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    while len(connections) < len(runs):
        try:
            name, connection = accept_from(listener, runs, deadline, lambda run: result_of(runs.index(run), run))
            connections[int(name)] = connection
        except TimeoutError:
            missing = min(set(range(len(runs))) - connections.keys())
            raise WorkerLost(missing, f"it did not connect within {CONNECT_SECONDS:.0f} s") from None
    return [connections[rank] for rank in range(len(runs))]


def accept_line(actor: Any, node_id: str, is_stopped: Callable[[], bool]) -> Connection | None:
    """Have an actor on that node open its line; None if a signal has stopped its process, as
    `is_stopped` says. Raises RayError or OSError.
    """
    with listening([node_id]) as listener:
        # Not waited for: once the line is open, the watch notices whatever happens to the process.
        holding = actor.hold_line.remote(listener.address, listener.token)
        began = seen_running = time.monotonic()
        while True:
            try:
                _, line = accept_from(listener, [holding], time.monotonic() + LOOK_SECONDS, ray.get)
                return line
            except TimeoutError:
                now = time.monotonic()
                if not is_stopped():
                    seen_running = now
                if now > seen_running + STOPPED_SECONDS:
                    return None
                if now > began + LINE_SECONDS:
                    raise


def accept_from(
    listener: Listener, calls: Sequence[Any], deadline: float, result: Callable[[Any], object]
) -> tuple[str, Connection]:
    """The next connection that one of these calls to actors makes, and its name.

    If one of the calls fails instead, raises what `result` raises for it; TimeoutError at
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
