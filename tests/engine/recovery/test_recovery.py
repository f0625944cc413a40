"""Restarts after lost workers: how many, what they cost, and what the last one leaves."""

import sys

import pytest

from engine.errors import REQUEST_QUARANTINED, EngineDead
from engine.recovery.recovery import BACKOFF_SECONDS, MAX_CONVICTIONS, PROGRESS_STEPS, RestartBudget
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.poisons import POISON, alone, neighbours, poisoned
from tests.engine.support.workloads import Knobs, essence, finish, make_engine, run


def test_a_killer_that_comes_again_and_again_does_not_stop_the_engine() -> None:
    engine = make_engine(Knobs(overrides={"max_restarts": 3}))
    engine.executor.deadly = {POISON}
    others = neighbours(4)
    expected = alone(others)
    for number in range(4):
        answers = run(engine, [poisoned(f"poison{number}"), others[number]])
        assert answers[f"poison{number}"].error_code == REQUEST_QUARANTINED
        assert essence(answers[f"r{number}"]) == expected[f"r{number}"]
    assert engine.dead is None and engine.executor.num_restarts <= 8


def test_the_budget_is_for_restarts_in_a_row() -> None:
    budget = RestartBudget(3)
    for _ in range(20):
        assert budget.take() == BACKOFF_SECONDS[0]
        for _ in range(PROGRESS_STEPS):
            budget.stepped()
    assert [budget.take() for _ in range(4)] == [*BACKOFF_SECONDS[:3], None]


def test_convictions_excuse_failures_but_not_for_ever() -> None:
    budget = RestartBudget(2)
    for _ in range(MAX_CONVICTIONS):
        assert budget.take() is not None and budget.take() is not None
        budget.convicted()
    assert budget.take() is not None and budget.take() is not None
    budget.convicted()
    assert budget.take() is None


def calls_of_a_recovery(num_waiting: int) -> int:
    """Function calls of a step that fails, and of the next one, with so many requests that wait and
    none that may go.
    """
    engine = make_engine(Knobs(num_blocks=2000, depth=2, runs_ahead=True, overrides={"max_num_seqs": 8}))
    for request in neighbours(8, max_tokens=100):
        add_request(engine, request.request_id, request.prompt, request.params)
    for _ in range(3):
        engine.step()
    for number in range(num_waiting):
        add_request(engine, f"waiting{number}", [7, 8, 9], SamplingParams(max_tokens=5))
    engine.executor.crash_at = {engine.scheduler.step}
    num_calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    num_recoveries = engine.stats().num_recoveries
    sys.setprofile(count)
    try:
        while engine.stats().num_recoveries == num_recoveries:
            engine.step()
        engine.step()
    finally:
        sys.setprofile(None)
    assert len(engine.scheduler.queues.running) == 8 and len(engine.scheduler.queues.waiting) == num_waiting
    return num_calls


def test_a_recovery_asks_nothing_of_each_request_that_waits() -> None:
    assert abs(calls_of_a_recovery(10) - calls_of_a_recovery(3000)) < 100


def test_when_restarts_are_used_up_every_request_hears_why():
    engine = make_engine(Knobs(overrides={"max_restarts": 1}))
    engine.executor.crash_at = {3, 5}
    for number in range(3):
        add_request(engine, f"r{number}", [number + 1] * 5, SamplingParams(max_tokens=50, ignore_eos=True))
    answers = finish(engine)
    assert {answer.error for answer in answers.values()} == {
        "worker 0 lost: crashed on purpose; max_restarts=1 are used up"
    }
    with pytest.raises(EngineDead, match="crashed on purpose"):
        add_request(engine, "late", [1], SamplingParams())


def test_a_dead_engine_has_nothing_to_do() -> None:
    """Whatever its third tier was about to keep."""
    engine = make_engine(Knobs(num_cpu_blocks=20, third_tier="whole", overrides={"max_restarts": 0}))
    engine.executor.crash_at = {engine.scheduler.step}
    add_request(engine, "r", [1, 2, 3] * 20, SamplingParams(max_tokens=50, ignore_eos=True))
    while engine.dead is None:
        engine.step()
    assert engine.scheduler.third_tier.wants_steps
    assert not engine.has_work and not engine.has_unfinished_requests()
