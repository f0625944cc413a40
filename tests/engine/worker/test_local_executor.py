"""The executor of one rank in this process."""

from collections.abc import Iterator

import pytest
import torch

from engine.errors import InvalidConfig, StepRaised, WorkerLost
from engine.worker.local_executor import LocalExecutor
from tests.engine.worker.on_demo import MODEL, make_config
from tests.engine.worker.steps import Part, generate, make_step, pairs

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
    return make_step(step, [Part([1], 0, [1])], carried_step=100, carried_rows=pairs((0, 0)))


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


def test_several_ranks_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size=2 × pipeline_parallel_size=1; use ray"):
        make_executor(tensor_parallel_size=2)
