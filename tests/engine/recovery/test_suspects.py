"""Requests that fail every step they are in end alone, with few restarts."""

import random

import pytest

from engine.errors import REQUEST_QUARANTINED, STEP_FAILED
from engine.recovery.suspects import MAX_KILLS
from tests.engine.support.arrivals import add_request
from tests.engine.support.poisons import POISON, alone, neighbours, poisoned
from tests.engine.support.workloads import Knobs, essence, finish, make_engine, run

KNOBS = [Knobs(depth=depth, runs_ahead=ahead) for depth, ahead in ((1, False), (2, True), (2, False))]


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
    engine.abort_request(tried.group.request.id)
    (next_one,) = engine.scheduler.queues.waiting.admissible()
    assert next_one is not tried


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
    assert [lane.group.request.id for lane in engine.scheduler.queues.waiting] == ["proved", "tried", "newcomer"]
    assert [lane.group.request.id for lane in engine.scheduler.queues.waiting.admissible()] == ["proved", "tried"]
    answers = finish(engine)
    assert answers["tried"].error_code == STEP_FAILED
    assert essence(answers["newcomer"]) == alone([newcomer])["r1"] and answers["proved"].error is None
