"""Calls through Ray to the processes of all ranks, and their results."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.workers.processes.process import WorkerProcess
from cluster.workers.ray_errors import reason_of, result_of

StartCall = Callable[[WorkerProcess, int], Any]  # of a process and its rank; returns Ray's reference


class RankCalls:
    """`processes` in order of rank; each rank's last call is remembered."""

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self._processes = processes
        self._last: dict[int, Any] = {}

    def start(self, start: StartCall, ranks: Sequence[int]) -> list[Any]:
        """start(process, rank) on these ranks; the calls."""
        for rank in ranks:
            self._last[rank] = start(self._processes[rank], rank)
        return [self._last[rank] for rank in ranks]

    def results(self, start: StartCall, ranks: Sequence[int] | None = None) -> list[Any]:
        """start(process, rank) on these ranks, or on all, and the results; the first failure ends
        the wait for the others. Raises InvalidConfig or WorkerLost.
        """
        ranks = range(len(self._processes)) if ranks is None else ranks
        calls = self.start(start, ranks)
        waiting = list(calls)
        while waiting:
            (ended,), waiting = ray.wait(waiting)
            result_of(ranks[calls.index(ended)], ended)
        return [result_of(rank, call) for rank, call in zip(ranks, calls, strict=True)]

    def report_end(self, rank: int) -> None:
        """Give the rank's process up once its last call ends with an error beyond repair."""
        self._last[rank].future().add_done_callback(partial(_report_end, self._processes[rank]))

    def stuck(self, seconds: float, *, has_run: bool) -> set[int]:
        """The ranks whose last call does not end within `seconds`, or whose process is of no use
        after it. `has_run`: the last call is `run`, which raises only what is beyond repair.
        """
        calls = list(self._last.values())
        ended, _ = ray.wait(calls, num_returns=len(calls), timeout=seconds) if calls else ([], [])
        return {rank for rank, call in self._last.items() if call not in ended or not _is_sound(call, has_run)}


def _is_sound(call: Any, has_run: bool) -> bool:
    try:
        ray.get(call)
    except RayTaskError:
        return not has_run
    except RayError:
        return False
    return True


def _report_end(process: WorkerProcess, run: "Future[None]") -> None:
    """Called by Ray when a worker's `run` has ended: with its epoch, with its process, or with an
    error beyond repair.
    """
    error = run.exception()
    if isinstance(error, RayError):
        process.lose(reason_of(error), is_our_doing=isinstance(error, RayTaskError))
