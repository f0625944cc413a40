"""Where the time went, by request and by step."""

import json
import random

import pytest

from engine.records.chrome_trace import ChromeTrace
from tests.engine.support.workloads import Knobs, make_engine, random_requests, run


def test_a_requests_times_sum_to_its_life_and_the_timeline_has_every_step():
    rng = random.Random(3)
    requests = [r for r in random_requests(rng, 40) if r.params.num_samples == 1]
    engine = make_engine(Knobs(num_blocks=30, num_cpu_blocks=60, depth=2, runs_ahead=True))
    engine.executor.crash_at = {20}
    answers = run(engine, requests)
    phases = set()
    for request_id, answer in answers.items():
        if answer.error is None:
            parts = engine.requests.why(request_id).seconds
            assert sum(parts.values()) == pytest.approx(answer.metrics.finished_time - answer.metrics.arrival_time)
            phases |= set(parts)
    assert {"queue", "prefill", "decode", "recovery"} <= phases and phases & {"swap", "preemption"}
    steps = [record.step for record in engine.recorder.timeline.records]
    assert steps == sorted(steps) and len(steps) == engine.stats().num_steps
    trace = ChromeTrace(pid=0)
    events = [json.loads(event) for record in engine.recorder.timeline.records for event in trace.events(record)]
    assert {event["args"]["step"] for event in events if event["name"] in ("decode", "prefill")} <= set(steps)
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    with pytest.raises(KeyError):
        engine.requests.why("never seen")
