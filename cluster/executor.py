"""`RayExecutor`: the executor of tensor- and pipeline-parallel ranks, each a Ray actor."""

from concurrent.futures import Future

import ray

from cluster.placement import CPUS_PER_WORKER, Placement, give_back, has_gpus, place
from cluster.worker_group import WorkerGroup
from engine.config import EngineConfig
from engine.errors import InvalidConfig, WorkerLost
from engine.executor import Capacity
from engine.outputs import SamplerOutput
from engine.request import ExecuteModelRequest


class RayExecutor:
    """An `Executor`. Ray places, starts and ends the workers; steps travel over `StepChannel`. One group is one epoch."""

    def __init__(self, config: EngineConfig, *, cpus_per_worker: float = CPUS_PER_WORKER) -> None:
        """`cpus_per_worker`: logical CPUs of Ray's, not threads."""
        num_stages = config.pipeline_parallel_size
        # One stage alone is kept busy by the next step's being there already; several by steps of different sequences.
        self.depth = max(2, num_stages)
        # Tokens are sampled on the last stage and looked up on the first.
        self.runs_ahead = num_stages == 1
        self._config = config
        self._cpus_per_worker = cpus_per_worker
        self._epoch = 0
        self._placement: Placement | None = None
        self._group: WorkerGroup | None = None

    @property
    def worker_pids(self) -> list[int]:
        """The workers' process ids, in order of rank, each of its own node; none before `start` or after `shutdown`."""
        return self._group.pids if self._group is not None else []

    def start(self) -> Capacity:
        if not ray.is_initialized():
            raise InvalidConfig("this process is connected to no Ray cluster; call ray.init first")
        # Each worker could find a device for itself; all must find the same kind, and the one they were placed for.
        device = "cuda" if has_gpus(self._config) else "cpu"
        self._config = self._config.model_copy(update={"device": device})
        self._placement = place(self._config, cpus_per_worker=self._cpus_per_worker)
        try:
            return self._start_group(self._placement)
        except BaseException:
            self.shutdown()
            raise

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        if self._group is not None and request.epoch == self._epoch:
            return self._group.steps.submit(request)
        future: Future[SamplerOutput] = Future()
        future.set_exception(
            WorkerLost(0, f"step {request.step} is of epoch {request.epoch}, and this is epoch {self._epoch}")
        )
        return future

    def restart(self) -> Capacity:
        assert self._placement is not None, "restart before start"
        self._epoch += 1
        self._end_group()
        return self._start_group(self._placement)

    def shutdown(self) -> None:
        self._end_group()
        if self._placement is not None and ray.is_initialized():
            give_back(self._placement)
        self._placement = None

    def _start_group(self, placement: Placement) -> Capacity:
        self._group = WorkerGroup(self._config, placement)
        return self._group.capacity

    def _end_group(self) -> None:
        if self._group is not None:
            self._group.kill()
        self._group = None
