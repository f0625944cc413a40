"""Kills a worker where somebody wants to see what happens: in `squadron demo`."""

import os
import random
import signal
from typing import Any

from cluster.api.errors import Unavailable
from cluster.gateway.models.all_models import AllModels

RETRY_AFTER = 2.0  # seconds


class DemoKiller:
    """A `WorkerKiller` of workers that are on this gateway's machine."""

    def __init__(self, gateways: AllModels) -> None:
        self._gateways = gateways

    async def kill_worker(self) -> dict[str, Any]:
        """See `WorkerKiller`."""
        told = await self._gateways.worker_pids()
        workers = [(replica, rank, pid) for replica, pids in told.items() for rank, pid in enumerate(pids)]
        if not workers:
            message = "No rank of any engine has a process of its own now"
            raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER)
        replica, rank, pid = random.choice(workers)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            message = f"Process {pid} of rank {rank} has just ended by itself"
            raise Unavailable(message, code="not_ready", retry_after=RETRY_AFTER) from None
        return {"replica": replica, "rank": rank, "pid": pid}
