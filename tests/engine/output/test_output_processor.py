"""Trouble with one request's rows ends that request; its neighbours go on."""

import pytest

from engine.sampling_params import SamplingParams
from engine.scheduling.plan import PlainRow
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, Request, essence, make_engine, run, truth


def test_a_row_without_finite_logits_fails_its_request_alone():
    requests = [
        Request(f"r{n}", [n + 1] * 20, SamplingParams(seed=n, max_tokens=20, ignore_eos=True), 0, None)
        for n in range(8)
    ]
    undisturbed = run(make_engine(Knobs()), requests)
    engine = make_engine(Knobs())
    engine.executor.poison = {5}
    answers = run(engine, requests)
    failed = [answer for answer in answers.values() if answer.error is not None]
    assert [answer.request_id for answer in failed] == ["r0"]
    assert failed[0].outputs[0].finish_reason == "error" and "finite" in failed[0].error
    assert all(essence(answers[r.request_id]) == essence(undisturbed[r.request_id]) for r in requests[1:])


def test_an_exception_in_one_requests_text_fails_it_alone(monkeypatch):
    requests = [
        Request(f"r{n}", [n + 1] * 20, SamplingParams(seed=n, max_tokens=20, ignore_eos=True), 0, None)
        for n in range(4)
    ]
    undisturbed = run(make_engine(Knobs()), requests)
    engine = make_engine(Knobs())
    whole, calls = engine.processor.detokenizer.push, iter(range(10**6))

    def push(*arguments):
        if next(calls) == 3:  # a first token: those that follow it are mostly looked up
            raise RuntimeError("detokenizer trouble")
        return whole(*arguments)

    monkeypatch.setattr(engine.processor.detokenizer, "push", push)
    answers = run(engine, requests)
    failed = [answer for answer in answers.values() if answer.error is not None]
    assert len(failed) == 1 and "detokenizer trouble" in failed[0].error
    assert sum(essence(answers[r.request_id]) == essence(undisturbed[r.request_id]) for r in requests) == 3


def test_a_token_that_there_is_not_fails_its_request_alone(monkeypatch):
    """Of a row that goes on, whose text is looked up."""
    requests = [Request(f"r{n}", [n + 1] * 20, SamplingParams(seed=n, max_tokens=9), 0, None) for n in range(2)]
    engine = make_engine(Knobs())
    process, steps = engine.processor.process, iter(range(10**6))

    def processed(plan, output, scheduler, now):
        if next(steps) == 3:
            assert isinstance(plan.scheduled[0], PlainRow)
            output.token_ids[0] = 5000
        return process(plan, output, scheduler, now)

    monkeypatch.setattr(engine.processor, "process", processed)
    answers = run(engine, requests)
    assert answers["r0"].error is not None and answers["r1"].error is None
    assert answers["r1"].outputs[0].token_ids == truth(requests[1], 0, seed=1)


def test_an_exception_in_one_beam_search_fails_it_alone(monkeypatch):
    def broken(group, blocks):
        raise OverflowError("beam trouble")

    monkeypatch.setattr("engine.output.beam_search.advance", broken)
    beams = Request("beams", [5] * 20, SamplingParams(beam_width=2, temperature=0.0, max_tokens=9), 0, None)
    plain = Request("plain", [6] * 20, SamplingParams(seed=1, max_tokens=20, ignore_eos=True), 0, None)
    answers = run(make_engine(Knobs()), [beams, plain])
    assert answers["beams"].error == "OverflowError: beam trouble"
    assert answers["plain"].outputs[0].token_ids == truth(plain, 0, seed=1)


@pytest.mark.parametrize("fields", [{"n": 3}, {"n": 1, "best_of": 3}])
def test_what_the_choices_gained_in_the_step_that_failed_is_told(fields):
    """Else the end would be that of tokens which the caller has never had."""
    engine = make_engine(Knobs())
    engine.executor.poison = {4}
    add_request(engine, "r", [7] * 50, SamplingParams(**fields, seed=5, max_tokens=30, ignore_eos=True))
    num_told = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            for choice in output.outputs:
                assert choice.first_index == num_told.get(choice.index, 0)
                num_told[choice.index] = choice.first_index + len(choice.token_ids)
    assert {choice.finish_reason for choice in output.outputs} == {"error"} and output.finished
    assert num_told == ({0: 4, 1: 5, 2: 5} if "best_of" not in fields else {0: 0, 1: 0, 2: 0})
