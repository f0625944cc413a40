"""The worker processes of an engine and Ray's resources for them, from the start to the end."""

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

import ray
from ray.exceptions import RayError

from cluster.workers.placement import PLACEMENT_SECONDS, Placement, give_back, has_gpus, place
from cluster.workers.processes.pool import WorkerPool
from cluster.workers.processes.process import WorkerProcess
from cluster.workers.restocking import Restocking
from engine.config import EngineConfig
from engine.errors import InvalidConfig, WorkerLost

logger = logging.getLogger("squadron.executor")

ELASTIC_SECONDS = 20  # to find another node, before continuing with fewer ranks


class WorkerSupply:
    """`config` is that of the ranks which are placed: `shrink` changes it. `in_use` guards the
    pool: one thread at a time.
    """

    def __init__(self, config: EngineConfig, cpus_per_worker: float) -> None:
        """`cpus_per_worker`: Ray's logical CPUs."""
        self.config = config
        self.in_use = threading.RLock()
        self.restocking = Restocking(self._stock, self.in_use)
        self._cpus_per_worker = cpus_per_worker
        self._placement: Placement | None = None
        self._pool: WorkerPool | None = None
        self._is_filled = False  # every rank has its process
        self._released: list[WorkerProcess] = []  # kept, between two epochs

    @property
    def is_placed(self) -> bool:
        return self._pool is not None

    @property
    def may_shrink(self) -> bool:
        return self.config.elastic and self.config.tensor_parallel_size > 1

    def place(self, timeout: int = PLACEMENT_SECONDS) -> None:
        """Find room for every rank; raises InvalidConfig if there is none within `timeout`
        seconds.
        """
        # Decided here, because all workers must use the same kind of device, the one they were
        # placed for.
        device = "cuda" if has_gpus(self.config) else "cpu"
        self.config = self.config.model_copy(update={"device": device})
        self._placement = place(self.config, cpus_per_worker=self._cpus_per_worker, timeout=timeout)
        num_spares = self.config.num_spare_workers if device == "cpu" else 0
        self._pool = WorkerPool(self._placement, num_spares, on_missing=self.restocking.after_loss)

    def fill(self) -> list[WorkerProcess]:
        """Running processes for all ranks, in order. Raises WorkerLost (NoPlace), InvalidConfig."""
        assert self._pool is not None
        processes = self._pool.fill(ELASTIC_SECONDS if self.may_shrink else PLACEMENT_SECONDS)
        self._is_filled = True
        return processes

    def release(self, processes: Sequence[WorkerProcess], sound: Sequence[WorkerProcess]) -> None:
        """Take back the processes of an epoch that has ended, and end those that are of no further
        use.
        """
        assert self._pool is not None
        keeps = self.config.device == "cpu"
        self._pool.end([process for process in processes if not (keeps and process in sound)])
        self._released = [process for process in processes if not process.is_lost]
        self._is_filled = False

    def sleep(self, level: int) -> None:
        """Between two epochs: see `Worker.sleep`. Processes that were ended hold nothing anyway."""
        for call in [process.actor.sleep.remote(level) for process in self._released]:
            with suppress(RayError):  # one that has died is replaced in the next epoch
                ray.get(call)

    def shrink(self, error: Exception) -> None:
        """Halve the number of tensor-parallel ranks until there is room for them. Results do not
        depend on it. `error`: why there is no room for all. Raises WorkerLost.
        """
        while self.may_shrink:
            size = self.config.tensor_parallel_size // 2
            logger.warning("continuing with tensor_parallel_size=%d: %s", size, error)
            self.close()
            self.config = self.config.model_copy(update={"tensor_parallel_size": size})
            try:
                return self.place(ELASTIC_SECONDS if self.may_shrink else PLACEMENT_SECONDS)
            except InvalidConfig as no_room:
                error = no_room
        raise WorkerLost(0, str(error))

    def close(self) -> None:
        """End every process and give the resources back; idempotent."""
        self.restocking.cancel()
        with self.in_use:
            if self._pool is not None:
                self._pool.close()
            self._pool = None
            self._is_filled = False
            if self._placement is not None and ray.is_initialized():
                give_back(self._placement)
            self._placement = None

    def _stock(self) -> None:
        """Start missing spares, in the background."""
        if self._pool is not None and self._is_filled and ray.is_initialized():
            self._pool.stock()
