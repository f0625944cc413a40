"""When a plan is a step."""

from engine.scheduling.plan import SchedulerOutputs


def test_moving_blocks_is_a_step_and_waiting_is_none() -> None:
    assert SchedulerOutputs(0, max_tokens=10).is_empty
    for moves in ("blocks_to_swap_out", "blocks_to_swap_in", "blocks_to_copy"):
        assert not SchedulerOutputs(0, max_tokens=10, **{moves: [(1, 2)]}).is_empty


def test_plans_share_no_lists() -> None:
    first, second = SchedulerOutputs(0, 1), SchedulerOutputs(1, 1)
    first.blocks_to_copy.append((1, 2))
    assert second.blocks_to_copy == []
