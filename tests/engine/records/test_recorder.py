"""Where the time went, by request and by step."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from engine.outputs import SamplerOutput
from engine.records.chrome_trace import ChromeTrace
from engine.sampling_params import SamplingParams
from engine.scheduling.plan import SchedulerOutputs
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine, random_requests, run


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


def test_what_scheduler_and_ranks_worked_while_a_request_ran_is_known_once_it_has_ended(monkeypatch):
    engine = make_engine(Knobs())
    recorder = engine.recorder

    def arrived(plan: SchedulerOutputs, output: SamplerOutput, now: float) -> float:
        return whole(plan, replace(output, execute_ns=np.array([1, 2]) * (plan.step + 1) * 1000), now)

    whole = recorder.arrived
    monkeypatch.setattr(recorder, "arrived", arrived)
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    add_request(engine, "long", [1] * 20, replace(params, max_tokens=9))
    add_request(engine, "never", [1] * 20, params)
    engine.abort_request("never")
    engine.step()
    add_request(engine, "short", [2] * 20, params)
    finish(engine)
    ended = dict(recorder.last_ended(9))
    records = recorder.timeline.records
    for name, num_steps in (("long", 9), ("short", 5)):
        steps = [record for record in records if name in record.request_ids]
        assert len(steps) == num_steps
        worked = sum(max(record.execute_ns) for record in steps) / 1e9
        assert ended[name].execute_seconds == pytest.approx(worked) and worked > 0
        assert 0 < ended[name].scheduler_seconds <= sum(step.submitted - step.schedule_start for step in steps)
    assert (ended["never"].execute_seconds, ended["never"].scheduler_seconds) == (0.0, 0.0)
