"""The executor of a single rank, in this process: one thread that runs the steps in order."""

import importlib
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from engine.config import EngineConfig
from engine.errors import InvalidConfig, StepFailure, StepRaised, WorkerLost, in_a_line
from engine.executor import Capacity
from engine.outputs import SamplerOutput
from engine.request import ExecuteModelRequest
from engine.worker.capacity import make_capacity

logger = logging.getLogger("squadron.executor")


class LocalExecutor:
    """An `Executor`. After an exception in a step the worker goes on in the next epoch, unless its device has failed."""

    depth = 2
    runs_ahead = True

    def __init__(self, config: EngineConfig) -> None:
        if config.world_size > 1:
            raise InvalidConfig(
                f"distributed_executor_backend=local runs one rank, not tensor_parallel_size={config.tensor_parallel_size} "
                f"× pipeline_parallel_size={config.pipeline_parallel_size}; use ray"
            )
        self._config = config
        self._epoch = 0
        self._failure: StepFailure | None = None
        # All of the worker's life is in one thread: its OpenMP threads are that thread's.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker")

    def start(self) -> Capacity:
        return self._thread.submit(self._start).result()

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        return self._thread.submit(self._execute, request)

    def restart(self) -> Capacity:
        self._epoch += 1
        return self._thread.submit(self._restart).result()

    def shutdown(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _start(self) -> Capacity:
        self._worker: Any = None  # its memory goes before the next one's comes
        self._failure = None
        # Not imported above: a process that only might run the model itself has no need of torch.
        self._worker = importlib.import_module("engine.worker.worker").Worker(self._config)
        logger.info("worker 0: %s", self._worker.report)
        num_gpu_blocks, num_cpu_blocks = self._worker.determine_num_available_blocks()
        swap_seconds = self._worker.initialize_cache(num_gpu_blocks, num_cpu_blocks)
        self._capacity = make_capacity(self._config, num_gpu_blocks, num_cpu_blocks, swap_seconds)
        return self._capacity

    def _restart(self) -> Capacity:
        if not isinstance(self._failure, StepRaised):
            return self._start()
        self._failure = None
        return self._capacity

    def _execute(self, request: ExecuteModelRequest) -> SamplerOutput:
        if request.epoch != self._epoch:
            raise WorkerLost(0, f"step {request.step} is of epoch {request.epoch}, and this is epoch {self._epoch}")
        if self._failure is not None:
            raise self._failure
        try:
            output: SamplerOutput = self._worker.execute(request)
            return output
        except Exception as error:
            logger.exception("step %d of epoch %d failed", request.step, request.epoch)
            failure = WorkerLost if self._worker.is_beyond_repair(error) else StepRaised
            self._failure = failure(0, in_a_line(error), request.step)
            raise self._failure from error
