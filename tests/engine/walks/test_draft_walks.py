"""With a draft model, whatever the engine does to a request: its answer stays the same, and the
draft has computed all that it should have.
"""

import random
from dataclasses import replace

import pytest

from tests.engine.support.workloads import (
    DEMO,
    Knobs,
    essence,
    make_engine,
    random_knobs,
    random_requests,
    run,
    was_refused,
)

NUM_WORKLOADS, NUM_SHARDS = 90, 3


def drafting_knobs(rng):
    knobs = random_knobs(rng)
    knobs.overrides["speculative_config"] = {"model": DEMO, "num_speculative_tokens": rng.randint(1, 9)}
    return knobs


@pytest.mark.parametrize("shard", [0, *(pytest.param(shard, marks=pytest.mark.long) for shard in range(1, NUM_SHARDS))])
@pytest.mark.parametrize("is_right", [True, False])
def test_answers_depend_on_the_request_alone(is_right, shard):
    num_drafts, num_right = 0, 0
    for seed in range(shard, NUM_WORKLOADS, NUM_SHARDS):
        rng = random.Random(seed)
        requests = random_requests(rng, rng.randint(1, 8))
        if is_right:  # the draft model has no adapters
            requests = [replace(request, adapter=None) for request in requests]
        expected = {}
        for request in requests:
            expected |= run(make_engine(Knobs(overrides={"enable_prefix_caching": False})), [request])
        engine = make_engine(drafting_knobs(rng))
        engine.executor.draft.errors = None if is_right else rng
        if rng.random() < 0.2:
            engine.executor.crash_at = {rng.randint(1, 120) for _ in range(3)}
        got = run(engine, requests, rng)
        for request in requests:
            told = got[request.request_id]
            if told.error_code is None and not was_refused(told.error):
                assert essence(told) == essence(expected[request.request_id]), (seed, request)
        assert engine.scheduler.blocks.device.num_free == engine.scheduler.blocks.device.num_usable
        assert engine.scheduler.blocks.host.num_free == engine.scheduler.blocks.host.num_usable
        drafts = engine.recorder.measures.copy().drafts
        num_drafts, num_right = num_drafts + drafts.num_tokens, num_right + drafts.num_accepted
    # Drafts beyond an answer's end count as wrong.
    assert (0.9 if is_right else 0.3) * num_drafts < num_right < (1.0 if is_right else 0.8) * num_drafts
