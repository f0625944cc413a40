"""How long a step may take, by how long steps have taken."""

from cluster.workers.steps.deadline import StepDeadline


def test_the_limit_follows_the_slowest_steps() -> None:
    deadline = StepDeadline(first_seconds=600, floor_seconds=30)
    assert deadline.limit(1) == 600
    deadline.took(1, 0.01)
    deadline.took(100, 2.0)
    deadline.took(1000, 0.5)
    assert 30 + 19 * 2.0 < deadline.limit(100) <= 30 + 20 * 2.0


def test_a_large_step_is_not_given_what_as_many_small_ones_take() -> None:
    """A model that takes a second for one token takes ten for two thousand, not half an hour."""
    deadline = StepDeadline(first_seconds=600, floor_seconds=30)
    deadline.took(1, 1.0)
    deadline.took(1024, 5.0)
    assert deadline.limit(2048) == 30 + 20 * 10.0
