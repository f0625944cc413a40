"""Who counts as lost, by what was heard of it and when; that lines end, and frozen processes are
found, is tested with Ray.
"""

from dataclasses import dataclass
from typing import cast

import pytest

from cluster.workers.processes.process import WorkerProcess
from cluster.workers.processes.watch import LOADING_SECONDS, SILENT_SECONDS, STOPPED_SECONDS, Watched, reason_to_lose


@dataclass
class Process:
    """As much of a `WorkerProcess` as is looked at."""

    is_stopped: bool = False
    is_loading: bool = False


def watched(process: Process) -> Watched:
    return Watched(cast(WorkerProcess, process), heard=100.0)


def test_a_stopped_process_is_lost_once_it_was_stopped_for_long() -> None:
    process = watched(Process(is_stopped=True))
    assert reason_to_lose(process, 100.5) is None
    assert reason_to_lose(process, 100.4 + STOPPED_SECONDS) is None
    reason = reason_to_lose(process, 100.5 + STOPPED_SECONDS)
    assert reason == f"stopped by a signal, no sign of life for {0.5 + STOPPED_SECONDS:.1f} s"


def test_pauses_do_not_add_up() -> None:
    process = Process(is_stopped=True)
    paused = watched(process)
    for start in (100.0, 102.2, 104.4):
        process.is_stopped = True
        assert reason_to_lose(paused, start + 0.1) is None
        assert reason_to_lose(paused, start + 2.0) is None
        process.is_stopped = False
        assert reason_to_lose(paused, start + 2.1) is None


@pytest.mark.parametrize(("is_loading", "limit"), [(False, SILENT_SECONDS), (True, LOADING_SECONDS)])
def test_silence_alone_counts_late(is_loading: bool, limit: float) -> None:
    process = watched(Process(is_loading=is_loading))
    assert reason_to_lose(process, 100 + limit - 0.1) is None
    assert reason_to_lose(process, 100 + limit) == f"no sign of life for {limit:.1f} s"
