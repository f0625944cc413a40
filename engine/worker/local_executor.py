"""The executor of a single rank, in this process.

On a CPU a thread computes the steps. On a device that runs beside the host, the caller's thread
launches them: another one would have to get the interpreter back from it after each call of torch,
which takes milliseconds while the caller is busy.
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


class LaunchedStep(Future[SamplerOutput]):
    """Whoever asks for its result waits for the device; one thread alone may."""

    def __init__(self, finish: Callable[[], SamplerOutput], unfinished: "set[LaunchedStep]") -> None:
        """unfinished: it is among these until then."""
        super().__init__()
        self._finish, self._unfinished = finish, unfinished
        unfinished.add(self)

    def result(self, timeout: float | None = None) -> SamplerOutput:
        self._end()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._end()
        return super().exception(timeout)

    def _end(self) -> None:
        if self.done():
            return
        self._unfinished.discard(self)
        try:
            self.set_result(self._finish())
        except StepFailure as failure:
            self.set_exception(failure)


class LocalExecutor:
    """An `Executor`. After an exception in a step the worker goes on in the next epoch, unless its
    device has failed.
    """

    depth = 2
    runs_ahead = True
    worker_pids = ()
    worker_nodes = ()

    def __init__(self, config: EngineConfig, weights: Weights | None = None, *, overlaps: bool | None = None) -> None:
        """weights: None: those that are configured. overlaps: launch a step while the one before
        runs; None: if the device runs beside the host.
        """
        self._config = config
        self._weights = weights
        self._epoch = 0
        self._failure: StepFailure | None = None
        self._overlaps = overlaps
        self._masks = MaskQueue()
        self._launching: Future[Any] | None = None  # the last step that waits for masks in the thread
        self._unfinished: set[LaunchedStep] = set()
        # Where nothing overlaps, all of the worker happens in one thread, which owns its OpenMP
        # threads.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker")
        self._waiting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outputs")

    def prepare(self, weights: Weights | None) -> None:
        self._weights = weights

    def start(self) -> Capacity:
        return self._thread.submit(self._start).result()

    def submit(self, request: ExecuteModelRequest) -> Future[SamplerOutput]:
        if not self._overlaps:
            return self._thread.submit(self._execute, request)
        if request.awaits_masks or (self._launching is not None and not self._launching.done()):
            self._launching = self._thread.submit(self._launch, request)
            return self._waiting.submit(self._finish, request, self._launching.result)
        try:
            step = self._launch(request)
        except StepFailure as failure:
            failed: Future[SamplerOutput] = Future()
            failed.set_exception(failure)
            return failed
        return LaunchedStep(lambda: self._finish(request, lambda: step), self._unfinished)

    def supply(self, masks: StepMasks) -> None:
        self._masks.put(masks)

    def restart(self) -> Capacity:
        self._masks.end(self._epoch)
        self._epoch += 1
        for step in [*self._unfinished]:
            step.exception()
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
