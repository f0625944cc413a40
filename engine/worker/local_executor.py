"""The executor of a single rank, in this process: one thread that launches the steps in order, and
one that waits for them.
"""

import importlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from engine.config import EngineConfig
from engine.errors import InvalidConfig, StepFailure, StepRaised, WorkerLost, in_a_line
from engine.executor import Capacity, Weights
from engine.outputs import SamplerOutput
from engine.step import ExecuteModelRequest, StepMasks
from engine.worker.mask_queue import MaskQueue

logger = logging.getLogger("squadron.executor")


class LocalExecutor:
    """An `Executor`. After an exception in a step the worker goes on in the next epoch, unless its
    device has failed.
    """

    depth = 2
    runs_ahead = True
    worker_pids = ()
    worker_nodes = ()

    def __init__(self, config: EngineConfig, weights: Weights | None = None, *, overlaps: bool | None = None) -> None:
        """weights: None: those that are configured. overlaps: launch a step while the one before is
        waited for; None: if the device runs beside the host.
        """
        self._config = config
        self._weights = weights
        self._epoch = 0
        self._failure: StepFailure | None = None
        self._overlaps = overlaps
        self._masks = MaskQueue()
        # Everything of the worker but waiting happens in one thread, which owns its OpenMP threads.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker")
        self._waiting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outputs")

    def start(self) -> Capacity:
        return self._thread.submit(self._start).result()

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        if not self._overlaps:
            return self._thread.submit(self._execute, request)
        launched = self._thread.submit(self._launch, request)
        return self._waiting.submit(self._finish, request, launched.result)

    def supply(self, masks: StepMasks) -> None:
        self._masks.put(masks)

    def restart(self) -> Capacity:
        self._masks.end(self._epoch)
        self._epoch += 1
        self._waiting.submit(lambda: None).result()  # the epoch's last step has been answered
        try:
            return self._thread.submit(self._restart).result()
        except InvalidConfig:
            raise
        except Exception as error:  # the same process often cannot use a failed device again
            self._failure = lost = WorkerLost(0, in_a_line(error))
            raise lost from error

    def load(self, weights: Weights | None) -> Capacity:
        self._weights = weights
        return self.restart()

    def sleep(self, level: int) -> None:
        self._thread.submit(lambda: self._worker.sleep(level)).result()

    def was_killed(self, failure: WorkerLost) -> bool:
        """What ends the worker ends this process."""
        return False

    def shutdown(self) -> None:
        self._masks.end(self._epoch)
        self._thread.shutdown(cancel_futures=True)
        self._waiting.shutdown(cancel_futures=True)

    def _start(self) -> Capacity:
        self._worker: Any = None  # free its memory before the next one allocates
        self._failure = None
        # Not imported above: a process that only might run the model itself has no need of torch.
        module = importlib.import_module("engine.worker.worker")
        self._worker = module.Worker(self._config, weights=self._weights)
        if self._overlaps is None:
            self._overlaps = self._worker.is_asynchronous
        logger.info("worker 0: %s", self._worker.report)
        return self._make_cache()

    def _make_cache(self) -> Capacity:
        num_gpu_blocks, num_cpu_blocks = self._worker.determine_num_available_blocks()
        swap_seconds = self._worker.initialize_cache(num_gpu_blocks, num_cpu_blocks)
        self._capacity = Capacity(num_gpu_blocks, num_cpu_blocks, swap_seconds, self._worker.arithmetic)
        return self._capacity

    def _restart(self) -> Capacity:
        if isinstance(self._failure, WorkerLost) or self._worker is None:
            return self._start()
        self._failure = None
        self._worker.hold(self._weights)
        return self._capacity if self._worker.has_cache else self._make_cache()

    def _execute(self, request: ExecuteModelRequest) -> SamplerOutput:
        return self._finish(request, lambda: self._launch(request))

    def _launch(self, request: ExecuteModelRequest) -> Any:
        """The worker's `PendingStep`."""
        if request.epoch != self._epoch:
            raise WorkerLost(0, f"step {request.step} is of epoch {request.epoch}, and this is epoch {self._epoch}")
        if self._failure is not None:
            raise self._failure
        with self._failing(request):
            return self._worker.launch(request, self._masks.take)

    def _finish(self, request: ExecuteModelRequest, launched: Callable[[], Any]) -> SamplerOutput:
        step = launched()
        if (
            self._failure is not None and (self._failure.step or 0) < request.step
        ):  # what was launched before it is still good
            raise self._failure
        with self._failing(request):
            output: SamplerOutput = self._worker.finish(step)
            return output

    @contextmanager
    def _failing(self, request: ExecuteModelRequest) -> Iterator[None]:
        try:
            yield
        except StepFailure:  # a step that waited for masks when its epoch ended
            raise
        except Exception as error:
            logger.exception("step %d of epoch %d failed", request.step, request.epoch)
            failure = WorkerLost if self._worker.is_beyond_repair(error) else StepRaised
            raised = failure(0, in_a_line(error), request.step)
            if not isinstance(self._failure, WorkerLost):  # from which whatever comes later may only follow
                self._failure = raised
            raise raised from error
