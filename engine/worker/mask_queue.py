"""Masks on their way from the engine's thread to the worker's, in one process."""

from queue import SimpleQueue

from engine.errors import WorkerLost
from engine.step import ExecuteModelRequest, StepMasks


class MaskQueue:
    """Its `take` is a `LateMasks`. Masks come in the order of their steps; those of a step that
    failed may be left over.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[StepMasks | int] = SimpleQueue()

    def put(self, masks: StepMasks) -> None:
        self._queue.put(masks)

    def end(self, epoch: int) -> None:
        """No more come for this epoch: waiting threads return."""
        self._queue.put(epoch)

    def take(self, request: ExecuteModelRequest) -> StepMasks:
        """Wait for the step's; raises WorkerLost if its epoch has ended."""
        while True:
            match self._queue.get():
                case StepMasks() as masks:
                    if (masks.epoch, masks.step) == (request.epoch, request.step):
                        return masks
                case epoch:
                    if epoch >= request.epoch:
                        raise WorkerLost(0, f"epoch {epoch} has ended", request.step)
