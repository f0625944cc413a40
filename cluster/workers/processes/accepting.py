"""Waits for workers to connect, and for failures of the calls that make them connect."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from cluster.sockets.connection import Connection
from cluster.sockets.listener import Listener
from cluster.workers.ray_errors import result_of
from engine.errors import WorkerLost

CONNECT_SECONDS = 30.0
LOOK_SECONDS = 0.2  # between checks whether the process that should connect has died


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
