"""The last steps, and those of a request."""

import numpy as np

from engine.records.timeline import StepRecord, Timeline


def record(step: int, names: list[str], num_tokens: list[int]) -> StepRecord:
    """A step of a second, of which half was the driver's; two ranks took a quarter."""
    return StepRecord(
        step=step,
        epoch=0,
        request_ids=tuple(names),
        choices=np.zeros(len(names), np.int32),
        starts=np.zeros(len(names), np.int32),
        num_tokens=np.array(num_tokens, np.int32),
        num_samples=len(names),
        num_swapped_out=0,
        num_swapped_in=0,
        num_copied=0,
        preempted=[],
        schedule_start=step + 0.0,
        submitted=step + 0.25,
        finished=step + 0.75,
        processed=step + 1.0,
        execute_ns=(250_000_000, 250_000_000),
    )


def test_the_last_steps_are_kept() -> None:
    timeline = Timeline(capacity=2)
    for step in range(5):
        timeline.records.append(record(step, ["a"], [1]))
    assert [each.step for each in timeline.records] == [3, 4]


def test_finds_the_last_steps_of_a_request() -> None:
    timeline = Timeline()
    for step in range(9):
        timeline.records.append(record(step, ["a", "b"] if step % 2 else ["b"], [1, 1]))
    assert [found.step for found in timeline.steps_of("a", since=0.0, most=3)] == [3, 5, 7]
    assert [found.step for found in timeline.steps_of("a", since=5.5, most=3)] == [5, 7]
    assert timeline.steps_of("c", since=0.0, most=3) == []


def test_steps_are_given_a_few_at_a_time() -> None:
    timeline = Timeline(capacity=5)
    for step in range(8):
        timeline.records.append(record(step, ["a"], [1]))
    assert [found.step for found in timeline.steps_after(-1, most=3)] == [3, 4, 5]
    assert [found.step for found in timeline.steps_after(5, most=3)] == [6, 7]
    assert timeline.steps_after(7, most=3) == []
