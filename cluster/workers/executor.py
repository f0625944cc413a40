"""`RayExecutor`: the executor of tensor- and pipeline-parallel ranks, each a Ray actor."""

import logging
import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future

import ray

from cluster.memory import available_memory
from cluster.workers.group import WorkerGroup
from cluster.workers.nodes_memory import check_nodes
from cluster.workers.placement import CPUS_PER_WORKER, PLACEMENT_SECONDS, Placement, give_back, has_gpus, place
from cluster.workers.processes.pool import NoPlace, WorkerPool
from cluster.workers.steps.deadline import StepDeadline
from cluster.workers.steps.step_channel import StepChannel
from engine.config import EngineConfig
from engine.errors import InvalidConfig, WorkerLost
from engine.executor import Capacity, Executor
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest
from engine.worker.local_executor import LocalExecutor

logger = logging.getLogger("squadron.executor")

ELASTIC_SECONDS = 20  # to find another node, before continuing with fewer ranks
STOCK_SECONDS = 10.0  # after the start: by importing torch, spares would delay the first answer
RESTOCK_SECONDS = 0.5  # after the loss of a spare; doubled at each consecutive loss, which may have a lasting cause
MAX_RESTOCK_SECONDS = 300.0  # losses further apart are not consecutive


def make_executor(config: EngineConfig) -> Executor:
    """The executor that the configuration asks for; raises InvalidConfig where one rank in this
    process has not enough memory.
    """
    if not config.runs_in_process:
        return RayExecutor(config)
    if not has_gpus(config):
        check_nodes(config, ["of this process"], [available_memory()])
    return LocalExecutor(config)


class Phases:
    """The times of a start's phases, for the log."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._parts: list[str] = []

    def end(self, name: str) -> None:
        now = time.monotonic()
        self._parts.append(f"{name} {now - self._began:.2f} s")
        self._began = now

    def __str__(self) -> str:
        return ", ".join(self._parts)


class RayExecutor:
    """An `Executor`. Ray places, starts and ends the workers; steps travel over `StepChannel`. One
    group is one epoch.

    A restart keeps the processes that leave the lost step by themselves, with their weights; spares
    replace dead ones. GPU workers are all replaced, because a lost peer leaves their device
    waiting.
    """

    def __init__(self, config: EngineConfig, *, cpus_per_worker: float = CPUS_PER_WORKER) -> None:
        """`cpus_per_worker`: Ray's logical CPUs, not threads."""
        num_stages = config.pipeline_parallel_size
        # A single stage is kept busy by having the next step early; several stages by steps of
        # different sequences.
        self.depth = max(2, num_stages)
        # Tokens are sampled on the last stage and looked up on the first.
        self.runs_ahead = num_stages == 1
        self._config = config
        self._cpus_per_worker = cpus_per_worker
        self._epoch = 0
        self._deadline = StepDeadline()
        self._placement: Placement | None = None
        self._pool: WorkerPool | None = None
        self._group: WorkerGroup | None = None
        self._level: str | None = None  # agreed on by the first group; later ones keep to it
        self._arithmetic: Mapping[str, str] = {}
        self._steps: StepChannel | None = None
        self._in_use = threading.RLock()  # guards the pool: one thread at a time
        self._stocking: threading.Timer | None = None
        self._will_stock = False
        self._lost_spare_at = -math.inf
        self._restock_seconds = RESTOCK_SECONDS

    @property
    def worker_pids(self) -> list[int]:
        """The workers' process ids, in order of rank, each valid on its own node; none before
        `start` or after `shutdown`.
        """
        return [process.facts.pid for process in self._group.processes] if self._group is not None else []

    def start(self) -> Capacity:
        if not ray.is_initialized():
            raise InvalidConfig("this process is connected to no Ray cluster; call ray.init first")
        # Decided here, because all workers must use the same kind of device, the one they were
        # placed for.
        device = "cuda" if has_gpus(self._config) else "cpu"
        self._config = self._config.model_copy(update={"device": device})
        try:
            pool = self._place(PLACEMENT_SECONDS)
            capacity = self._start_group(pool, None, Phases())
        except BaseException:
            self.shutdown()
            raise
        self._stock_in(STOCK_SECONDS)
        return capacity

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        if self._steps is not None and request.epoch == self._epoch:
            return self._steps.submit(request)
        future: Future[SamplerOutput] = Future()
        future.set_exception(
            WorkerLost(0, f"step {request.step} is of epoch {request.epoch}, and this is epoch {self._epoch}")
        )
        return future

    def restart(self) -> Capacity:
        self._epoch += 1
        with self._in_use:
            capacity = self._restart()
            self._restock_seconds = RESTOCK_SECONDS
            self._stock()
        return capacity

    def was_killed(self, failure: WorkerLost) -> bool:
        return self._group is not None and self._group.processes[failure.rank].was_killed

    def shutdown(self) -> None:
        if self._stocking is not None:
            self._stocking.cancel()
        with self._in_use:
            if self._pool is not None:
                self._dissolve(self._pool)
                self._pool.close()
            self._pool = None
            if self._placement is not None and ray.is_initialized():
                give_back(self._placement)
            self._placement = None

    def _restart(self) -> Capacity:
        phases = Phases()
        if self._pool is None:  # a restart with fewer ranks found no place
            return self._start_group(self._place(PLACEMENT_SECONDS), None, phases)
        before = self._group.capacity if self._group is not None else None
        self._dissolve(self._pool)
        phases.end("stopped")
        try:
            return self._start_group(self._pool, before, phases)
        except NoPlace as error:
            if not self._may_shrink:
                raise
            pool = self._shrink(error)
            phases.end("placed anew")
            return self._start_group(pool, None, phases)

    def _restock(self) -> None:
        """A spare was lost: start another after a delay, along with any lost meanwhile."""
        before, self._lost_spare_at = self._lost_spare_at, time.monotonic()
        if self._will_stock:
            return
        if self._lost_spare_at - before > MAX_RESTOCK_SECONDS:
            self._restock_seconds = RESTOCK_SECONDS
        self._stock_in(self._restock_seconds)
        self._restock_seconds = min(2 * self._restock_seconds, MAX_RESTOCK_SECONDS)

    def _stock_in(self, seconds: float) -> None:
        self._will_stock = True
        self._stocking = threading.Timer(seconds, self._stock)
        self._stocking.daemon = True
        self._stocking.start()

    def _stock(self) -> None:
        """Start missing spares, in the background."""
        with self._in_use:
            self._will_stock = False
            if self._pool is not None and self._group is not None and ray.is_initialized():
                self._pool.stock()

    @property
    def _may_shrink(self) -> bool:
        return self._config.elastic and self._config.tensor_parallel_size > 1

    def _shrink(self, error: Exception) -> WorkerPool:
        """Halve the number of tensor-parallel ranks until there is room for them. Results do not
        depend on it.
        """
        while self._may_shrink:
            size = self._config.tensor_parallel_size // 2
            logger.warning("going on with tensor_parallel_size=%d: %s", size, error)
            self.shutdown()
            self._config = self._config.model_copy(update={"tensor_parallel_size": size})
            try:
                return self._place(ELASTIC_SECONDS if self._may_shrink else PLACEMENT_SECONDS)
            except InvalidConfig as no_room:
                error = no_room
        raise WorkerLost(0, str(error))

    def _place(self, timeout: int) -> WorkerPool:
        self._placement = place(self._config, cpus_per_worker=self._cpus_per_worker, timeout=timeout)
        num_spares = self._config.num_spare_workers if self._config.device == "cpu" else 0
        self._pool = WorkerPool(self._placement, num_spares, on_missing=self._restock)
        return self._pool

    def _dissolve(self, pool: WorkerPool) -> None:
        """End the epoch; its processes are kept only if they are sound."""
        if self._group is None:
            return
        sound = self._group.part()
        keeps = self._config.device == "cpu"
        pool.end([process for process in self._group.processes if not (keeps and process in sound)])
        self._group = self._steps = None

    def _start_group(self, pool: WorkerPool, before: Capacity | None, phases: Phases) -> Capacity:
        processes = pool.fill(ELASTIC_SECONDS if self._may_shrink else PLACEMENT_SECONDS)
        phases.end("started")
        self._group = WorkerGroup(self._config, processes, self._epoch, self._deadline, self._level)
        capacity = self._group.load(before)
        self._level, self._arithmetic = self._group.level, self._arithmetic or capacity.arithmetic
        if capacity.arithmetic != self._arithmetic:
            raise InvalidConfig(
                f"workers that were replaced compute {capacity.arithmetic}, not {self._arithmetic} as before"
            )
        phases.end("loaded")
        self._steps = self._group.connect()
        phases.end("connected")
        logger.info("epoch %d begins; %s", self._epoch, phases)
        return capacity
