"""An executor whose ranks are threads of this process: real workers, real gloo between them, and no
process to start.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.executor import Capacity, Weights, smallest
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest, StepMasks
from engine.worker.mask_queue import MaskQueue
from engine.worker.ranks import LOOPBACK, join_store, open_store
from engine.worker.worker import Worker


class Answer(Future[SamplerOutput]):
    """The speaker's, once all ranks have ended the step, with what each has fetched."""

    def __init__(self, futures: list[Future[Any]], speaker: int, workers: list[Worker]) -> None:
        super().__init__()
        self._futures, self._speaker, self._workers = futures, speaker, workers

    def result(self, timeout: float | None = None) -> SamplerOutput:
        output: SamplerOutput = [future.result(timeout) for future in self._futures][self._speaker]
        fetched = np.concatenate([output.fetched, *[worker.take_fetched() for worker in self._workers]])
        return replace(output, fetched=fetched, execute_ns=output.execute_ns.repeat(len(self._workers)))


class ThreadExecutor:
    """An `Executor` for any TP × PP, with the depth that `RayExecutor` has. It cannot restart:
    threads cannot be killed.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.runs_ahead = True
        self.depth = config.pipeline_parallel_size + 1
        self._config = config
        self._masks = [MaskQueue() for _ in range(config.world_size)]
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"rank {rank}") for rank in range(config.world_size)]

    def start(self) -> Capacity:
        store = open_store(LOOPBACK)
        self._workers: list[Worker] = self._on_all(lambda rank: self._make(rank, store))
        sizes = self._on_all(lambda rank: self._workers[rank].determine_num_available_blocks())
        num_gpu_blocks, num_cpu_blocks = smallest(sizes)
        seconds = self._on_all(lambda rank: self._workers[rank].initialize_cache(num_gpu_blocks, num_cpu_blocks))
        return Capacity(num_gpu_blocks, num_cpu_blocks, max(seconds), self._workers[0].arithmetic)

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        futures = [
            thread.submit(worker.execute, request, masks.take)
            for thread, worker, masks in zip(self._threads, self._workers, self._masks, strict=True)
        ]
        return Answer(futures, self._config.world_size - self._config.tensor_parallel_size, self._workers)

    def supply(self, masks: StepMasks) -> None:
        for queue in self._masks[-self._config.tensor_parallel_size :]:
            queue.put(masks)

    def restart(self) -> Capacity:
        raise AssertionError("threads cannot be killed")

    def load(self, weights: Weights | None) -> Capacity:
        raise AssertionError("threads cannot begin an epoch")

    def sleep(self, level: int) -> None:
        raise AssertionError("threads cannot begin an epoch")

    def shutdown(self) -> None:
        for thread in self._threads:
            thread.shutdown()

    def _make(self, rank: int, store: Any) -> Worker:
        mine = store if rank == 0 else join_store(LOOPBACK, store.port)
        return Worker(self._config, rank, store=mine, num_ranks_here=self._config.world_size)

    def _on_all(self, do: Callable[[int], Any]) -> list[Any]:
        futures = [thread.submit(do, rank) for rank, thread in enumerate(self._threads)]
        return [future.result() for future in futures]
