"""Steps as a Chrome trace: a line for the driver, one for each rank and one for each sequence."""

import numpy as np

from engine.records.timeline import StepRecord, Timeline


def record(step: int, names: list[str], num_tokens: list[int]) -> StepRecord:
    """A step of a second, of which half was the driver's; two ranks took a quarter."""
    return StepRecord(
        step=step,
        epoch=0,
        request_ids=names,
        choices=[0] * len(names),
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


def test_every_part_of_a_step_is_on_a_line() -> None:
    timeline = Timeline()
    timeline.records.append(record(0, ["a"], [9]))
    timeline.records.append(record(1, ["a", "b"], [1, 5]))
    events = timeline.chrome_trace()["traceEvents"]
    lines = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(lines.values()) == ["a/0", "b/0", "driver", "rank 0", "rank 1"]
    told = [(lines[event["tid"]], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert ("driver", "schedule 1", 1e6, 0.25e6) in told and ("driver", "process 1", 1.75e6, 0.25e6) in told
    assert ("rank 1", "step 0", 0.5e6, 0.25e6) in told
    assert [part for part in told if part[0] == "a/0"] == [
        ("a/0", "prefill", 0.25e6, 0.5e6),
        ("a/0", "decode", 1.25e6, 0.5e6),
    ]


def test_drafts_are_part_of_decoding() -> None:
    timeline = Timeline()
    step = record(0, ["a", "b", "c"], [4, 4, 1])
    step.num_drafts, step.num_accepted = [3, 0, 0], [2, 0, 0]
    timeline.records.append(step)
    events = timeline.chrome_trace()["traceEvents"]
    told = [(event["name"], event["args"]) for event in events if event["tid"] >= 1000 and event["ph"] == "X"]
    assert told == [
        ("decode", {"start": 0, "tokens": 4, "drafts": 3, "accepted": 2, "step": 0}),
        ("prefill", {"start": 0, "tokens": 4, "step": 0}),
        ("decode", {"start": 0, "tokens": 1, "step": 0}),
    ]


def test_finds_the_last_steps_of_a_request() -> None:
    timeline = Timeline()
    for step in range(9):
        timeline.records.append(record(step, ["a", "b"] if step % 2 else ["b"], [1, 1]))
    assert [found.step for found in timeline.steps_of("a", since=0.0, most=3)] == [3, 5, 7]
    assert [found.step for found in timeline.steps_of("a", since=5.5, most=3)] == [5, 7]
    assert timeline.steps_of("c", since=0.0, most=3) == []
