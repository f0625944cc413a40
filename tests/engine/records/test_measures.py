"""Every token is counted once, whatever happens to its request."""

import random

import pytest

from engine.records.measures import Measured
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine, random_requests, run


def num_observed(measured: Measured, name: str) -> int:
    return int(sum(measured.histograms[name][:-1]))


@pytest.mark.parametrize(("depth", "runs_ahead"), [(1, False), (2, True), (3, False)])
def test_tokens_and_the_gaps_between_them_are_counted_once_through_preemptions_and_a_crash(depth, runs_ahead):
    rng = random.Random(5)
    requests = [r for r in random_requests(rng, 40) if r.params.beam_width is None and r.params.best_of is None]
    engine = make_engine(Knobs(num_blocks=60, num_cpu_blocks=60, depth=depth, runs_ahead=runs_ahead))
    engine.executor.crash_at = {20}
    answers = run(engine, requests)
    assert not [answer for answer in answers.values() if answer.error is not None]
    lengths = [len(choice.token_ids) for answer in answers.values() for choice in answer.outputs]
    measured = engine.recorder.measures.copy()
    assert measured.num_tokens == sum(lengths)
    assert num_observed(measured, "inter_token_latency_seconds") == sum(lengths) - sum(map(bool, lengths))
    assert measured.num_prompt_tokens == sum(len(request.prompt) for request in requests)
    assert 0 < measured.num_cached_tokens < measured.num_prompt_tokens
    assert num_observed(measured, "iteration_tokens_total") == engine.stats().num_steps
    for name in ("queue", "prefill", "decode", "inference"):
        assert num_observed(measured, f"request_{name}_time_seconds") == len(requests)
    lived = [answer.metrics.finished_time - answer.metrics.arrival_time for answer in answers.values()]
    assert sum(measured.phase_seconds.values()) == pytest.approx(sum(lived))
    assert measured.recovery_seconds > 0 and measured.phase_seconds["recovery"] > 0


def test_a_request_that_goes_on_here_was_counted_where_it_began():
    engine = make_engine(Knobs())
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    add_request(engine, "new", [1] * 20, params)
    add_request(engine, "moved", [2] * 30, params, output_ids=[[3, 3]])
    finish(engine)
    measured = engine.recorder.measures.copy()
    assert (measured.num_prompt_tokens, measured.num_tokens) == (20, 5 + 3)


def test_what_a_request_did_not_live_to_see_is_not_observed():
    engine = make_engine(Knobs())
    add_request(engine, "gone", [1] * 20, SamplingParams(max_tokens=5))
    engine.abort_request("gone")
    measured = engine.recorder.measures.copy()
    assert num_observed(measured, "request_decode_time_seconds") == 0 and measured.num_prompt_tokens == 0
    assert measured.phase_seconds["queue"] > 0


def test_each_ranks_work_is_summed():
    measures = make_engine(Knobs()).recorder.measures
    measures.stepped(10, (1_000_000_000, 2_000_000_000))
    measures.stepped(10, (500_000_000,))
    assert measures.copy().rank_seconds == [1.5, 2.0]


def test_preemptions_and_what_became_of_blocks_are_observed():
    rng = random.Random(5)
    requests = [r for r in random_requests(rng, 40) if r.params.beam_width is None and r.params.best_of is None]
    engine = make_engine(Knobs(num_blocks=60, num_cpu_blocks=60))
    run(engine, requests)
    measured, stats = engine.recorder.measures.copy(), engine.stats()
    assert num_observed(measured, "request_num_preemptions") == len(requests)
    preempted = measured.histograms["request_num_preemptions"][-1]
    assert preempted == stats.num_preemptions_swap + stats.num_preemptions_recompute > 0
    evicted = num_observed(measured, "kv_block_lifetime_seconds")
    assert evicted == num_observed(measured, "kv_block_idle_before_evict_seconds") > 0
    assert (
        measured.histograms["kv_block_idle_before_evict_seconds"][-1]
        <= (measured.histograms["kv_block_lifetime_seconds"][-1])
    )
    assert num_observed(measured, "kv_block_reuse_gap_seconds") > 0


def test_requests_whose_numbers_are_not_finite_are_counted():
    engine = make_engine(Knobs())
    engine.executor.poison = {0}
    for name in ("poisoned", "well"):
        add_request(engine, name, [1] * 20, SamplingParams(max_tokens=5))
    finish(engine)
    assert engine.recorder.measures.copy().num_corrupted == 1
