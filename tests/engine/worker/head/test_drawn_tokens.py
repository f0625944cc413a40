"""Tokens that the last stage has drawn are the first one's input, before the driver knows them."""

from dataclasses import replace

import pytest
import torch

from engine.step import ExecuteModelRequest
from engine.worker.head.drawn_tokens import DrawnTokens
from parallel.groups import shm_group
from parallel.groups.group import Group
from parallel.groups.pipeline import Stage
from tests.engine.worker.steps import Part, ints, make_step, pairs
from tests.parallel.ranks import run_ranks

NUM_STAGES = 3
PARTS = [Part([5, 6, 0], 2, [1]), Part([7, 8, 0], 2, [2])]


@pytest.fixture(params=["shared memory", "gloo"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "gloo":
        monkeypatch.setattr(shm_group, "join", lambda *_: None)


def step_of(number: int, *carried: tuple[int, int, int], epoch: int = 0) -> ExecuteModelRequest:
    """That returns its tokens; `carried`: to a row, from a step, its row."""
    return make_step(
        number,
        PARTS,
        epoch=epoch,
        returns_tokens=True,
        carried_steps=ints(*(step for _, step, _ in carried)),
        carried_rows=pairs(*((row, sampled) for row, _, sampled in carried)),
    )


def tokens_of(step: int) -> torch.Tensor:
    return torch.tensor([10 * step, 10 * step + 1], dtype=torch.int32)


def run_steps(steps: list[ExecuteModelRequest], *, num_late: int = 0) -> list[list[list[int]]]:
    """The input ids of the steps on each stage, which are connected as the layers would. The first
    stage begins none before the last has drawn the tokens of the first `num_late`, which it has
    begun in another way.
    """

    def walk(_: Group, pp: Group) -> list[list[int]]:
        stage = Stage(pp.rank, pp.size, pp)
        drawn, seen = DrawnTokens(stage), []
        for number, step in enumerate(steps):
            if number == num_late:
                pp.barrier()
            if stage.is_first:
                drawn.take(step)
            input_ids = torch.from_numpy(step.input_ids.copy())
            drawn.fill(step, input_ids)
            seen.append(input_ids.tolist())
            if stage.is_last:
                drawn.drew(step, tokens_of(step.step))
        pp.barrier()
        return seen

    return run_ranks(1, walk, pp_size=NUM_STAGES)


@pytest.mark.usefixtures("transport")
def test_a_step_begins_with_tokens_of_several_earlier_ones() -> None:
    steps = [step_of(0), step_of(1), step_of(2, (0, 0, 1), (1, 1, 0)), step_of(3, (1, 2, 1))]
    expected = [[0, 0], [0, 0], [1, 10], [0, 21]]
    first, middle, last = run_steps(steps)
    assert first == last == expected
    assert middle == [[0, 0]] * 4, "it embeds nothing"


@pytest.mark.usefixtures("transport")
def test_the_last_stage_waits_for_nobody_to_take_its_tokens() -> None:
    """As many steps as are in flight; they are taken when the driver knows them, though no step
    begins with any.
    """
    steps = [step_of(number) for number in range(NUM_STAGES + 1)]
    later = [step_of(20), step_of(21, (0, 20, 1))]
    first, _, last = run_steps([*steps, *later], num_late=len(steps))
    assert first == last
    assert first[-1] == [201, 0]


def test_steps_that_return_none_are_not_waited_for() -> None:
    plain = [replace(step_of(number), returns_tokens=False) for number in range(10)]
    assert run_steps([*plain, step_of(10), step_of(11, (1, 10, 0))])[0][-1] == [0, 100]


def test_nothing_comes_of_an_epoch_that_has_ended() -> None:
    alone = DrawnTokens(Stage(0, NUM_STAGES, None))  # that would fail if it took anything
    alone.take(step_of(0))
    alone.take(step_of(30, epoch=1))
    with pytest.raises(AssertionError):
        alone.take(step_of(60, epoch=1))


def test_tokens_that_are_not_kept_any_more_are_an_error() -> None:
    drawn = DrawnTokens(Stage(0, 1, None))
    for number in range(5):
        drawn.keep(number, tokens_of(number))
    with pytest.raises(ValueError, match="step 5 carries rows of step 0, whose tokens are not kept"):
        drawn.fill(step_of(5, (0, 0, 0)), torch.zeros(2, dtype=torch.int32))
