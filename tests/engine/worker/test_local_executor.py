"""The executor of one rank in this process."""

from collections.abc import Iterator
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch

from engine.errors import InvalidConfig, StepRaised, WorkerLost
from engine.step import ExecuteModelRequest, StepMasks
from engine.worker.local_executor import LocalExecutor
from tests.engine.worker.on_demo import MODEL, make_config
from tests.engine.worker.steps import Part, generate, ints, make_step, pairs

VOCAB = 768
PROMPTS = [list(range(40, 77)), [5, 6, 7]]


def make_executor(*, overlaps: bool | None = None, **changes: object) -> LocalExecutor:
    return LocalExecutor(make_config(**({"swap_space": 0.01} | changes)), overlaps=overlaps)


@pytest.fixture(params=[None, True], ids=["by the device", "overlapping"])
def executor(request: pytest.FixtureRequest) -> Iterator[LocalExecutor]:
    before = torch.get_num_threads()
    made = make_executor(num_gpu_blocks_override=32, overlaps=request.param)
    yield made
    made.shutdown()
    torch.set_num_threads(before)


def bad_step(step: int) -> object:
    return make_step(step, [Part([1], 0, [1])], carried_steps=ints(100), carried_rows=pairs((0, 0)))


def test_runs_steps_in_order(executor: LocalExecutor) -> None:
    capacity = executor.start()
    assert capacity.num_gpu_blocks == 32
    assert capacity.swap_seconds_per_block > 0
    futures = [executor.submit(make_step(step, [Part(PROMPTS[0], 0, [1, 2, 3])])) for step in range(4)]
    outputs = [future.result() for future in futures]
    assert [output.step for output in outputs] == [0, 1, 2, 3]
    assert len({int(output.token_ids[0]) for output in outputs}) == 1


def test_exception_ends_the_epoch_and_restart_begins_the_next(executor: LocalExecutor) -> None:
    executor.start()
    expected = generate(lambda request: executor.submit(request).result(), PROMPTS, 4)
    futures = [executor.submit(step) for step in (bad_step(7), make_step(8, [Part([1], 0, [1])]))]
    for future in futures:
        with pytest.raises(StepRaised, match="step 7 raised on worker 0: ValueError: step 7 carries rows of step 100"):
            future.result()
    assert executor.restart().num_gpu_blocks == 32
    assert generate(lambda request: executor.submit(request).result(), PROMPTS, 4, epoch=1, first_step=9) == expected


def test_a_device_that_cannot_be_had_again_is_a_lost_worker(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor.start()
    errors = [torch.AcceleratorError("an illegal memory access was encountered"), ValueError("what follows from it")]

    def fail(*arguments: object) -> None:
        raise errors[0]

    assert executor._worker.is_beyond_repair(errors[0])
    for error in errors:
        with pytest.raises((StepRaised, WorkerLost)), executor._failing(make_step(3, [Part([1], 0, [1])])):
            raise error
    monkeypatch.setattr(torch, "set_num_threads", fail)
    with pytest.raises(WorkerLost, match="an illegal memory access"):
        executor.restart()


def test_step_of_another_epoch_is_not_run(executor: LocalExecutor) -> None:
    executor.start()
    with pytest.raises(WorkerLost, match="step 5 is of epoch 1, and this is epoch 0"):
        executor.submit(make_step(5, [Part([1], 0, [1])], epoch=1)).result()
    assert executor.submit(make_step(6, [Part([1], 0, [1])])).result().step == 6


def masks(step: int, token_id: int, *, epoch: int = 0) -> StepMasks:
    """That leave a single token."""
    words = np.zeros(VOCAB // 32, np.int32)
    words[token_id // 32] = 1 << token_id % 32
    return StepMasks(epoch, step, ints(0, len(words)), words)


def awaiting(step: int, *, epoch: int = 0) -> ExecuteModelRequest:
    return make_step(step, [Part(PROMPTS[0], 0, [1, 2, 3])], epoch=epoch, awaits_masks=True)


def test_masks_come_after_their_step_and_each_step_takes_its_own(executor: LocalExecutor) -> None:
    executor.start()
    futures = [executor.submit(awaiting(0)), executor.submit(awaiting(1))]
    executor.supply(masks(0, 40))
    executor.supply(masks(1, 41))
    assert [future.result().token_ids.tolist() for future in futures] == [[40], [41]]


def test_a_step_whose_masks_never_come_ends_with_its_epoch(executor: LocalExecutor) -> None:
    executor.start()
    stuck = executor.submit(awaiting(1))
    executor.restart()
    with pytest.raises(WorkerLost, match="epoch 0"):
        stuck.result()
    again = executor.submit(awaiting(2, epoch=1))
    executor.supply(masks(1, 40))  # late, of the epoch before
    executor.supply(masks(2, 42, epoch=1))
    assert again.result().token_ids.tolist() == [42]


def test_a_step_whose_masks_never_come_does_not_hold_up_the_end(executor: LocalExecutor) -> None:
    executor.start()
    stuck = executor.submit(awaiting(0))
    executor.shutdown()
    with pytest.raises((WorkerLost, CancelledError)):
        stuck.result()


def test_shutdown_twice(executor: LocalExecutor) -> None:
    executor.start()
    executor.shutdown()
    executor.shutdown()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": MODEL + "/nowhere"}, "does not exist"),
        ({"ops_backend": "triton"}, "triton"),
    ],
)
def test_start_refuses_in_a_sentence(changes: dict[str, object], message: str) -> None:
    executor = make_executor(**changes)
    with pytest.raises(InvalidConfig, match=message):
        executor.start()
    executor.shutdown()
