"""Whatever the engine does to a request (chunks, cache hits, forks, swaps, recomputes, crashes),
its answer stays the same.
"""

import random

import pytest

from engine.scheduling.drafts.drafter import Drafter
from tests.engine.support.workloads import (
    Knobs,
    essence,
    foreknowing,
    make_engine,
    pooled_truth,
    random_knobs,
    random_requests,
    run,
    truth,
    was_refused,
)

NUM_WORKLOADS, NUM_SHARDS = 1000, 20


def undisturbed(requests):
    """Each request alone, on an engine with room for everything, a whole step at a time."""
    answers = {}
    for request in requests:
        engine = make_engine(Knobs(num_blocks=400, overrides={"enable_prefix_caching": False}))
        answers |= run(engine, [request])
    return answers


def tokens_of(answers):
    return {key: [choice.token_ids for choice in answer.outputs] for key, answer in answers.items()}


@pytest.mark.parametrize("shard", [0, *(pytest.param(shard, marks=pytest.mark.long) for shard in range(1, NUM_SHARDS))])
def test_answers_depend_on_the_request_alone(shard, monkeypatch):
    num_blamed, num_drafts, num_right, num_staged, num_loaded = 0, 0, 0, 0, 0
    for seed in range(shard, NUM_WORKLOADS, NUM_SHARDS):
        rng = random.Random(seed)
        requests = random_requests(rng, rng.randint(1, 8))
        expected = undisturbed(requests)
        engine = make_engine(random_knobs(rng))
        monkeypatch.setattr(Drafter, "guess", foreknowing(requests, tokens_of(expected), random.Random(seed)))
        if rng.random() < 0.2:
            engine.executor.crash_at = {rng.randint(1, 120) for _ in range(4)}
            engine.executor.raise_at = {rng.randint(1, 120)}
        got = run(engine, requests, rng)
        checked = engine.recorder.measures.copy().drafts
        num_loaded += engine.scheduler.blocks.host_tier.num_hits
        num_drafts, num_right = num_drafts + checked.num_tokens, num_right + checked.num_accepted
        num_staged += checked.num_tokens * (engine.executor.depth == 3 and engine.executor.runs_ahead)
        for request in requests:
            told = got[request.request_id]
            if told.error_code is not None:  # in flight, alone, at two crashes of a workload with four
                num_blamed += 1
            elif not was_refused(told.error):
                assert essence(told) == essence(expected[request.request_id]), (seed, request)
        assert engine.scheduler.blocks.device.num_free == engine.scheduler.blocks.device.num_usable
        assert engine.scheduler.blocks.host.num_free == engine.scheduler.blocks.host.num_usable
    assert num_blamed <= 4
    assert num_loaded > 30
    assert 0.2 * num_drafts < num_right < 0.9 * num_drafts
    assert num_staged > 50  # by two stages that are ahead of the driver


def test_undisturbed_answers_are_the_models_own():
    rng = random.Random(1)
    num_checked, pooled = 0, set()
    for request in random_requests(rng, 200):
        params = request.params
        if params.beam_width or params.stop or params.bad_words or params.best_of or request.matcher:
            continue
        answer = undisturbed([request])[request.request_id]
        if request.pooling is not None:
            assert [choice.pooled for choice in answer.outputs] == [pooled_truth(request)]
            pooled.add(request.pooling.type)
            continue
        for choice in answer.outputs:
            assert choice.token_ids == truth(request, choice.index, seed=params.seed)
            num_checked += 1
    assert num_checked > 100 and pooled == {"last", "mean", "logprobs"}
