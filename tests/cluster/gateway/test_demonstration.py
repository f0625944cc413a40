"""A worker that is killed for show."""

import subprocess
import sys
from typing import Any

import pytest

from cluster.api.errors import Unavailable
from cluster.gateway.demonstration import DemoKiller


class Gateways:
    """Knows the workers that it is given."""

    def __init__(self, pids: dict[str, list[int]]) -> None:
        self._pids = pids

    async def worker_pids(self) -> dict[str, list[int]]:
        return self._pids


def killer(pids: dict[str, list[int]]) -> DemoKiller:
    gateways: Any = Gateways(pids)
    return DemoKiller(gateways)


async def test_a_worker_of_an_engine_is_killed_and_named() -> None:
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with worker:
        assert await killer({"a": [], "b": [worker.pid]}).kill_worker() == {
            "replica": "b",
            "rank": 0,
            "pid": worker.pid,
        }
        assert worker.wait(60) == -9


async def test_without_workers_there_is_nothing_to_kill() -> None:
    with pytest.raises(Unavailable, match="No rank of any engine has a process of its own"):
        await killer({"a": []}).kill_worker()


async def test_a_worker_that_has_just_ended_is_not_killed() -> None:
    worker = subprocess.Popen([sys.executable, "-c", ""])
    worker.wait(60)
    with pytest.raises(Unavailable, match=f"Process {worker.pid} of rank 0 has just ended"):
        await killer({"a": [worker.pid]}).kill_worker()
