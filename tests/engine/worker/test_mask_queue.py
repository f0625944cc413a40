"""Masks from one thread to another."""

import numpy as np
import pytest

from engine.errors import WorkerLost
from engine.step import ExecuteModelRequest, StepMasks
from engine.worker.mask_queue import MaskQueue
from tests.engine.worker.steps import Part, make_step


def masks(epoch: int, step: int) -> StepMasks:
    return StepMasks(epoch, step, np.array([0, 1], np.int32), np.array([step], np.int32))


def step(number: int, epoch: int) -> ExecuteModelRequest:
    return make_step(number, [Part([1], 0, [1])], epoch=epoch)


def test_each_step_gets_its_own_and_leftovers_are_skipped() -> None:
    queue = MaskQueue()
    for number in (3, 4, 5):
        queue.put(masks(0, number))
    queue.end(0)
    queue.put(masks(1, 4))
    assert queue.take(step(4, epoch=0)).mask_words.tolist() == [4]
    assert queue.take(step(4, epoch=1)).epoch == 1


def test_the_end_of_an_epoch_ends_a_wait() -> None:
    queue = MaskQueue()
    queue.end(2)
    with pytest.raises(WorkerLost, match="epoch 2 has ended"):
        queue.take(step(9, epoch=2))
