"""Steps as a Chrome trace: a line for the driver, one for each rank and one for each sequence."""

import json
from typing import Any

from engine.records.chrome_trace import ChromeTrace
from engine.records.timeline import StepRecord
from tests.engine.records.test_timeline import record


def events_of(*records: StepRecord) -> list[dict[str, Any]]:
    trace = ChromeTrace(pid=3)
    return [json.loads(event) for record in records for event in trace.events(record)]


def test_every_part_of_a_step_is_on_a_line() -> None:
    events = events_of(record(0, ["a"], [9]), record(1, ["a", "b"], [1, 5]))
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
    step = record(0, ["a", "b", "c"], [4, 4, 1])
    step.num_drafts, step.num_accepted = [3, 0, 0], [2, 0, 0]
    events = events_of(step)
    told = [(event["name"], event["args"]) for event in events if event["tid"] >= 1000 and event["ph"] == "X"]
    assert told == [
        ("decode", {"start": 0, "tokens": 4, "drafts": 3, "accepted": 2, "step": 0}),
        ("prefill", {"start": 0, "tokens": 4, "step": 0}),
        ("decode", {"start": 0, "tokens": 1, "step": 0}),
    ]


def test_lines_are_named_once_and_names_are_quoted() -> None:
    events = events_of(record(0, ['say "a"'], [9]), record(1, ['say "a"'], [1]))
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["driver", "rank 0", "rank 1", 'say "a"/0']
    assert {event["pid"] for event in events} == {3}
