"""`RayExecutor`: the executor of tensor- and pipeline-parallel ranks, each a Ray actor."""

from concurrent.futures import Future

import ray

from cluster.workers.group.group import Lasting, WorkerGroup
from cluster.workers.phases import Phases
from cluster.workers.placement import CPUS_PER_WORKER, has_gpus
from cluster.workers.processes.pool import NoPlace
from cluster.workers.supply import WorkerSupply
from engine.config import EngineConfig
from engine.errors import InvalidConfig, WorkerLost
from engine.executor import Capacity, Weights
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest, StepMasks

# The first of more stages might not take what the last one returns before there is no room for it.
# Between GPUs nothing is returned: a transfer that a rank has begun is in the way of the next one.
MAX_STAGES_AHEAD = 16


class RayExecutor:
    """An `Executor`. Ray places, starts and ends the workers; steps travel over `StepChannel`. One
    group is one epoch.

    A restart keeps the processes that leave the lost step by themselves, with their weights; spares
    replace dead ones. GPU workers are all replaced, because a lost peer leaves their device
    waiting.
    """

    def __init__(
        self, config: EngineConfig, weights: Weights | None = None, *, cpus_per_worker: float = CPUS_PER_WORKER
    ) -> None:
        """`weights`: None: those that are configured. `cpus_per_worker`: Ray's logical CPUs, not
        threads.
        """
        self._settle_depth(config)
        self._supply = WorkerSupply(config, cpus_per_worker)
        self._epoch = 0
        self._lasting = Lasting(weights=weights)
        self._group: WorkerGroup | None = None

    def _settle_depth(self, config: EngineConfig) -> None:
        """For good once it is known which device the workers have."""
        num_stages = config.pipeline_parallel_size
        self.runs_ahead = num_stages == 1 or (num_stages <= MAX_STAGES_AHEAD and not has_gpus(config))
        # Each stage computes a step, and the next one is there before it is needed.
        self.depth = num_stages + self.runs_ahead

    @property
    def worker_pids(self) -> list[int]:
        """See `Executor`; for any thread."""
        group = self._group
        return [process.facts.pid for process in group.processes] if group is not None else []

    @property
    def worker_nodes(self) -> list[str]:
        """See `Executor`; for any thread."""
        group = self._group
        return [process.facts.node_id for process in group.processes] if group is not None else []

    def prepare(self, weights: Weights | None) -> None:
        self._lasting.change_weights(weights)

    def start(self) -> Capacity:
        if not ray.is_initialized():
            raise InvalidConfig("this process is connected to no Ray cluster; call ray.init first")
        try:
            self._supply.place()
            self._settle_depth(self._supply.config)
            capacity = self._begin(None, Phases())
        except BaseException:
            self.shutdown()
            raise
        self._supply.restocking.after_start()
        return capacity

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        steps = self._group.steps if self._group is not None else None
        if steps is not None and request.epoch == self._epoch:
            return steps.submit(request)
        future: Future[SamplerOutput] = Future()
        future.set_exception(
            WorkerLost(0, f"step {request.step} is of epoch {request.epoch}, and this is epoch {self._epoch}")
        )
        return future

    def supply(self, masks: StepMasks) -> None:
        steps = self._group.steps if self._group is not None else None
        if steps is not None and masks.epoch == self._epoch:
            steps.supply(masks)

    def restart(self) -> Capacity:
        self._epoch += 1
        with self._supply.in_use:
            capacity = self._restart()
            self._supply.restocking.now()
        return capacity

    def load(self, weights: Weights | None) -> Capacity:
        self._lasting.change_weights(weights)
        self._epoch += 1
        with self._supply.in_use:
            self._dissolve()
            capacity = self._begin(None, Phases())
            self._supply.restocking.now()
        return capacity

    def sleep(self, level: int) -> None:
        with self._supply.in_use:
            self._dissolve()
            self._supply.sleep(level)

    def was_killed(self, failure: WorkerLost) -> bool:
        return self._group is not None and self._group.processes[failure.rank].was_killed

    def shutdown(self) -> None:
        with self._supply.in_use:
            self._dissolve()
            self._supply.close()

    def _restart(self) -> Capacity:
        phases = Phases()
        if not self._supply.is_placed:  # a restart with fewer ranks found no place
            self._supply.place()
            return self._begin(None, phases)
        before = self._group.capacity if self._group is not None else None
        self._dissolve()
        phases.end("stopped")
        try:
            return self._begin(before, phases)
        except NoPlace as error:
            if not self._supply.may_shrink:
                raise
            self._supply.shrink(error)
            phases.end("placed again")
            return self._begin(None, phases)

    def _dissolve(self) -> None:
        """End the epoch; its processes are kept only if they are sound."""
        group, self._group = self._group, None
        if group is not None:
            self._supply.release(group.processes, group.part())

    def _begin(self, before: Capacity | None, phases: Phases) -> Capacity:
        """Begin the epoch; `before`: see `WorkerGroup.load`."""
        processes = self._supply.fill()
        phases.end("started")
        self._group = WorkerGroup(self._supply.config, processes, self._epoch, self._lasting)
        capacity = self._group.load(before)
        phases.end("loaded")
        self._group.connect()
        phases.end("connected")
        phases.log(self._epoch)
        return capacity
