"""With grammars and guesses, whatever the engine does to a request: its answer stays the same, also
where a grammar takes too much work.
"""

import random
from dataclasses import replace

import pytest

from engine.errors import TOKEN_TOO_COMPLEX
from engine.scheduling.drafts.drafter import Drafter
from tests.doubles.hash_grammar import HashMatcher, LaboriousMatcher
from tests.engine.support.workloads import (
    VOCAB,
    Knobs,
    essence,
    foreknowing,
    make_engine,
    random_knobs,
    random_requests,
    run,
    was_refused,
)

NUM_WORKLOADS = 80


def held_requests(rng, matcher):
    """All of them by a grammar; without beams, which have no drafts."""
    for request in random_requests(rng, rng.randint(1, 8)):
        if request.pooling is None and request.params.beam_width is None:
            yield replace(request, matcher=matcher(rng.getrandbits(40), VOCAB))


@pytest.mark.parametrize("matcher", [HashMatcher, LaboriousMatcher])
def test_answers_depend_on_the_request_alone(matcher, monkeypatch):
    num_drafts, num_right, num_laborious = 0, 0, 0
    for seed in range(NUM_WORKLOADS):
        rng = random.Random(seed)
        requests = list(held_requests(rng, matcher))
        expected = {}
        for request in requests:
            expected |= run(make_engine(Knobs(overrides={"enable_prefix_caching": False})), [request])
        knobs = random_knobs(rng)
        knobs.overrides["speculative_config"] = {"num_speculative_tokens": rng.randint(1, 9)}
        engine = make_engine(knobs)
        known = {key: [choice.token_ids for choice in answer.outputs] for key, answer in expected.items()}
        monkeypatch.setattr(Drafter, "guess", foreknowing(requests, known, random.Random(seed)))
        if rng.random() < 0.2:
            engine.executor.crash_at = {rng.randint(1, 120)}
        got = run(engine, requests, rng)
        for request in requests:
            told, right = got[request.request_id], expected[request.request_id]
            if was_refused(told.error):
                continue
            num_laborious += right.error_code == TOKEN_TOO_COMPLEX
            if right.error_code and len(right.outputs) > 1:  # one choice's error ends the others wherever they are
                assert told.error == right.error, (seed, request)
            else:
                assert essence(told) == essence(right), (seed, request)
        drafts = engine.recorder.measures.copy().drafts
        num_drafts, num_right = num_drafts + drafts.num_tokens, num_right + drafts.num_accepted
        assert engine.scheduler.blocks.device.num_free == engine.scheduler.blocks.device.num_usable
        assert engine.scheduler.blocks.host.num_free == engine.scheduler.blocks.host.num_usable
    assert 0.2 * num_drafts < num_right < 0.95 * num_drafts
    assert (num_laborious > 25) == (matcher is LaboriousMatcher)
