"""Tokens that the last stage has drawn are the first one's input, before the driver knows them."""

from dataclasses import replace

import numpy as np
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


def ringed(num_rows: int) -> DrawnTokens:
    drawn = DrawnTokens(Stage(0, 1, None))
    drawn.make_ring(num_rows, torch.device("cpu"))
    return drawn


def test_a_ring_says_where_the_tokens_of_the_last_steps_are() -> None:
    """Which step, and which of its rows; as `fill` has them."""
    drawn, seen = ringed(2), []
    for number in range(9):
        carried = [(row, before, 1 - row) for row, before in enumerate((number - 1, number - 2)) if before >= 0]
        step = step_of(number, *carried)
        sources, filled = np.full(2, 77, np.int32), torch.from_numpy(step.input_ids.copy())
        assert drawn.sources(step, sources)
        drawn.fill(step, filled)
        assert drawn.ring is not None
        taken = drawn.ring.view(-1)[torch.from_numpy(sources).clamp(min=0).long()]
        assert torch.where(torch.from_numpy(sources) < 0, torch.from_numpy(step.input_ids), taken).equal(filled)
        seen.append(sources.tolist())
        drawn.keep(number, tokens_of(number))
    assert seen[0] == [-1, -1]
    assert min(min(sources) for sources in seen[2:]) >= 0


def test_tokens_that_have_no_room_in_the_ring_are_kept_beside_it() -> None:
    drawn = ringed(1)
    drawn.keep(0, tokens_of(0)[:1])
    drawn.keep(1, tokens_of(1))
    step, sources = step_of(2, (0, 1, 1), (1, 0, 0)), np.empty(2, np.int32)
    assert not drawn.sources(step, sources)
    assert sources.tolist() == [-1, -1]
    filled = torch.zeros(2, dtype=torch.int32)
    drawn.fill(step, filled)
    assert filled.tolist() == [11, 0]


def test_what_a_graph_has_left_in_the_next_row_is_not_copied() -> None:
    drawn = ringed(2)
    drawn.keep(0, tokens_of(0))
    assert drawn.ring is not None
    drawn.ring[drawn.next_row] = tokens_of(1)
    drawn.keep(1, drawn.ring[drawn.next_row, :2], is_in_ring=True)
    sources = np.empty(2, np.int32)
    assert drawn.sources(step_of(2, (0, 1, 0), (1, 0, 1)), sources)
    assert drawn.ring.view(-1)[torch.from_numpy(sources).long()].tolist() == [10, 1]
