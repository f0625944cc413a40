"""Pipeline stages compute steps of different sequences, and each sequence has its turn."""

import random
from collections import Counter

import pytest

from engine.core.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.scheduling.budget.token_budget import MAX_LANES_AHEAD
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.waiting.cohorts import Cohorts
from engine.step import ExecuteModelRequest
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, make_engine


def decoding_engine(num_stages: int, count: int, **params: object) -> LLMEngine:
    """Running ahead, with so many sequences, of which each has a token."""
    engine = make_engine(Knobs(num_blocks=1000, depth=num_stages + 1, runs_ahead=True, overrides={"device": "cpu"}))
    for number in range(count):
        add_request(engine, str(number), [number + 6], SamplingParams(max_tokens=200, ignore_eos=True, **params))
    while engine.stats().num_generation_tokens < count:
        engine.step()
    return engine


def names(plan: SchedulerOutputs) -> list[str]:
    return [part.group.request.id for part in plan.scheduled]


def steps(engine: LLMEngine, count: int, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Whom the next steps serve, as they are executed."""
    plans: list[SchedulerOutputs] = []
    schedule = engine.scheduler.schedule
    monkeypatch.setattr(engine.scheduler, "schedule", lambda *args: plans.append(schedule(*args)) or plans[-1])
    while len([plan for plan in plans if plan.scheduled]) < count:
        engine.step()
    return [names(plan) for plan in plans if plan.scheduled][:count]


@pytest.mark.parametrize(("num_stages", "count"), [(2, 2), (2, 7), (3, 8), (4, 4)])
def test_each_sequence_is_in_one_of_as_many_steps_as_there_are_stages(
    num_stages: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = steps(decoding_engine(num_stages, count), 10 * num_stages, monkeypatch)[num_stages:]
    for start in range(len(served) - num_stages + 1):
        window = served[start : start + num_stages]
        assert Counter(name for step in window for name in step) == dict.fromkeys(map(str, range(count)), 1)
        assert max(map(len, window)) - min(map(len, window)) <= 1


def test_a_sequence_alone_is_one_token_ahead_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = decoding_engine(2, 1)
    (seq,) = engine.scheduler.queues.running[0].seqs
    pending = []
    submit = engine.executor.submit
    monkeypatch.setattr(engine.executor, "submit", lambda step: pending.append((seq.num_pending, step)) or submit(step))
    for _ in range(20):
        engine.step()
    assert [count for count, _ in pending] == [2] * len(pending)
    assert all(step.returns_tokens for _, step in pending)
    for _, step in pending:
        assert (step.carried_steps.tolist(), step.carried_rows.tolist()) == ([step.step - 1], [[0, 0]])


def test_many_sequences_keep_the_stages_busy_and_wait_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = decoding_engine(2, 2 * MAX_LANES_AHEAD + 1)
    for _ in range(4):
        engine.step()  # of those that were ahead when they were few
    sent: list[ExecuteModelRequest] = []
    submit = engine.executor.submit
    monkeypatch.setattr(engine.executor, "submit", lambda step: sent.append(step) or submit(step))
    for _ in range(20):
        engine.step()
    assert sent and not any(len(step.carried_steps) for step in sent)
    engine.abort_request("3")
    for _ in range(4):
        engine.step()
    assert len(sent[-1].carried_steps) == len(sent[-1].context_lens)


def test_those_who_come_between_two_turns_share_the_steps_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each cohort would be in two halves, of which one is always in flight."""
    count = 2 * MAX_LANES_AHEAD
    engine = decoding_engine(2, count)
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    for number in range(count, count + 5):
        for _ in range(3):
            engine.step()
        add_request(engine, str(number), [number + 6] * 20, params)
    while engine.scheduler.queues.cohorts.prompts or engine.stats().num_requests_waiting:
        engine.step()
    served = steps(engine, 24, monkeypatch)[4:]
    for window in zip(served[::2], served[1::2], strict=True):
        assert sorted(name for step in window for name in step) == sorted(map(str, range(count + 5)))


def test_who_must_wait_for_the_driver_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams, of one stage's turn; the others' steps go on meanwhile."""
    engine = decoding_engine(2, 1)
    add_request(engine, "beams", [5], SamplingParams(max_tokens=50, beam_width=2, temperature=0))
    served = steps(engine, 20, monkeypatch)
    assert sum("beams" in step for step in served) >= 7
    assert sum("0" in step for step in served) >= 7


@pytest.mark.parametrize("num_stages", [1, 2])
def test_beams_that_begin_in_different_steps_share_theirs(num_stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is ahead of the driver: in two halves, of which one is always in flight, each
    step would have half of them.
    """
    engine = decoding_engine(num_stages, num_stages)
    params = SamplingParams(max_tokens=100, beam_width=2, temperature=0, ignore_eos=True)
    for number in range(3 * num_stages):
        add_request(engine, f"beams {number}", [number + 5], params)
        for _ in range(1 + 2 * num_stages):
            engine.step()
    served = [set(step) for step in steps(engine, 12 * num_stages, monkeypatch)[num_stages:]]
    of_beams = [{name for name in step if "beams" in name} for step in served]
    assert {len(names) for names in of_beams} <= {0, 3} and of_beams.count(set()) <= len(served) * 2 / 3
    assert all(step & {"0", "1"} for step in served), "others are computed ahead meanwhile"


def test_cohorts_stay_alike_whoever_leaves() -> None:
    rng = random.Random(0)
    engine = decoding_engine(4, 30)
    cohorts = engine.scheduler.queues.cohorts
    while running := engine.scheduler.queues.running:
        lane = rng.choice(running)
        engine.abort_request(lane.group.request.id)
        sizes = [len(cohort.lanes) for cohort in cohorts._cohorts]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) + len(cohorts.prompts) == len(running)


def test_the_turn_is_of_those_who_can_use_it() -> None:
    engine = decoding_engine(2, 4)
    cohorts: Cohorts = engine.scheduler.queues.cohorts

    one, other = cohorts.take_turn(lambda _: True), cohorts.take_turn(lambda _: True)
    assert sorted(one + other, key=lambda lane: lane.order) == engine.scheduler.queues.running
    assert cohorts.take_turn(lambda lane: lane in other) == other
    assert cohorts.take_turn(lambda _: True) == one
    assert cohorts.take_turn(lambda _: False) == cohorts.prompts == []
    waiting = [cohort for cohort in cohorts if cohort.lanes == other]
    assert cohorts.take_turn(lambda _: True, waiting) == one
    assert cohorts.take_turn(lambda lane: lane in other, waiting) == []
