"""Requests that fail every step they are in end alone, with few restarts; and restarts are not for
ever.
"""

import random
import sys

import pytest

from engine.errors import REQUEST_QUARANTINED, STEP_FAILED
from engine.recovery import BACKOFF_SECONDS, MAX_CONVICTIONS, PROGRESS_STEPS, RestartBudget
from engine.sampling_params import SamplingParams
from engine.suspects import MAX_KILLS
from tests.engine.arrivals import add_request
from tests.engine.test_llm_engine import finish
from tests.engine.workloads import Knobs, Request, essence, make_engine, run

POISON = 36  # a token id that no other request's prompt has; answers may
KNOBS = [Knobs(depth=depth, runs_ahead=ahead) for depth, ahead in ((1, False), (2, True), (2, False))]


def neighbours(count: int, *, max_tokens: int = 12) -> list[Request]:
    params = {"max_tokens": max_tokens, "ignore_eos": True, "logit_bias": {POISON: -100.0}}
    return [
        Request(
            f"r{n}", [n % 35, *[(n * 7 + k) % 35 for k in range(n % 20)]], SamplingParams(seed=n, **params), 0, None
        )
        for n in range(count)
    ]


def poisoned(name: str = "poison") -> Request:
    params = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
    return Request(name, [3, 4, POISON, 5], params, 0, None)


def alone(requests: list[Request]) -> dict[str, object]:
    return {
        request.request_id: essence(run(make_engine(Knobs()), [request])[request.request_id]) for request in requests
    }


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
@pytest.mark.parametrize("place", [0, 31, 63])
def test_what_kills_the_process_is_quarantined_after_two_restarts(knobs: Knobs, place: int) -> None:
    others = neighbours(63)
    expected = alone(others)
    engine = make_engine(knobs)
    engine.executor.deadly = {POISON}
    answers = run(engine, [*others[:place], poisoned(), *others[place:]])
    assert engine.executor.num_restarts <= 2
    assert answers["poison"].error_code == REQUEST_QUARANTINED
    assert {name: essence(answer) for name, answer in answers.items() if name != "poison"} == expected
    assert engine.dead is None


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_what_raises_fails_alone_and_restarts_nothing_fifty_times(knobs: Knobs) -> None:
    others = neighbours(63, max_tokens=30)
    expected = alone(others)
    engine = make_engine(knobs)
    engine.executor.raising = {POISON}
    poisons = [poisoned(f"poison{n}") for n in range(50)]
    mixed = [*others, *poisons]
    random.Random(0).shuffle(mixed)
    answers = run(engine, mixed)
    assert engine.executor.num_restarts == 0
    assert {answers[poison.request_id].error_code for poison in poisons} == {STEP_FAILED}
    assert "raised on purpose" in str(answers["poison7"].error)
    assert {request.request_id: essence(answers[request.request_id]) for request in others} == expected


def test_one_failure_is_nobodys_fault() -> None:
    requests = neighbours(20)
    expected = alone(requests)
    engine = make_engine(Knobs(depth=2, runs_ahead=True))
    engine.executor.raise_at, engine.executor.crash_at = {3}, {9}
    answers = run(engine, requests)
    assert {name: essence(answer) for name, answer in answers.items()} == expected
    stats = engine.stats()
    assert (stats.num_failed_steps, stats.num_recoveries, stats.num_quarantined) == (1, 1, 0)


def test_two_kills_from_outside_convict_nobody() -> None:
    """A request that is alone, and before its first token, both times."""
    (request,) = neighbours(1)
    engine = make_engine(Knobs())
    engine.executor.is_kill = True
    engine.executor.crash_at = {0, 1, 2}
    answers = run(engine, [request])
    assert {request.request_id: essence(answers[request.request_id])} == alone([request])
    assert (engine.stats().num_recoveries, engine.stats().num_quarantined) == (3, 0)


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_what_has_the_process_killed_is_quarantined_after_some_more(knobs: Knobs) -> None:
    """Out of memory: from outside too, and the request's doing."""
    others = neighbours(20)
    expected = alone(others)
    engine = make_engine(knobs)
    engine.executor.is_kill = True
    engine.executor.deadly = {POISON}
    answers = run(engine, [*others[:10], poisoned(), *others[10:]])
    assert engine.executor.num_restarts == MAX_KILLS
    assert answers["poison"].error_code == REQUEST_QUARANTINED
    assert {name: essence(answer) for name, answer in answers.items() if name != "poison"} == expected


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


def test_suspects_from_elsewhere_are_tried_alone() -> None:
    engine = make_engine(Knobs())
    engine.executor.deadly = {POISON}
    suspects, good = [poisoned("bad"), *neighbours(5)], neighbours(1)[0]
    for request in suspects:
        add_request(engine, request.request_id, request.prompt, request.params, is_suspect=True)
    add_request(engine, "good", good.prompt, good.params)
    answers = finish(engine)
    expected = alone(neighbours(5))
    assert essence(answers["good"]) == expected["r0"]
    assert engine.executor.num_restarts == 1
    assert {name: essence(answers[name]) for name in expected} == expected
    assert answers["bad"].error_code == REQUEST_QUARANTINED


def test_an_abort_of_the_one_on_trial_lets_the_next_one_go() -> None:
    engine = make_engine(Knobs())
    requests = neighbours(3)
    for request in requests:
        add_request(engine, request.request_id, request.prompt, request.params, is_suspect=True)
    (tried,) = engine.scheduler.queues.waiting.admissible()
    engine.abort_request(tried.group.request_id)
    (next_one,) = engine.scheduler.queues.waiting.admissible()
    assert next_one is not tried


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


def test_newcomers_wait_while_a_trial_goes_on_and_those_with_a_token_do_not() -> None:
    engine = make_engine(Knobs(overrides={"max_num_seqs": 1}))
    tried, proved, newcomer = poisoned("tried"), *neighbours(2, max_tokens=40)
    add_request(engine, "proved", proved.prompt, proved.params)
    engine.step()
    add_request(engine, "tried", tried.prompt, tried.params, is_suspect=True)
    add_request(engine, "newcomer", newcomer.prompt, newcomer.params)
    engine.executor.raise_at = {engine.scheduler.step}
    engine.executor.raising = {POISON}
    engine.step()
    assert [lane.group.request_id for lane in engine.scheduler.queues.waiting] == ["proved", "tried", "newcomer"]
    assert [lane.group.request_id for lane in engine.scheduler.queues.waiting.admissible()] == ["proved", "tried"]
    answers = finish(engine)
    assert answers["tried"].error_code == STEP_FAILED
    assert essence(answers["newcomer"]) == alone([newcomer])["r1"] and answers["proved"].error is None
