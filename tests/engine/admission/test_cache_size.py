"""A cache that is too small, from the start or since a restart."""

from dataclasses import replace

import pytest

from engine.errors import InvalidConfig
from engine.sampling_params import SamplingParams
from tests.engine.support.workloads import Knobs, Request, essence, make_engine, run, truth


@pytest.mark.parametrize(
    ("overrides", "whose"),
    [({"max_model_len": 161}, "max_model_len=161"), ({"max_model_len": None}, "512 (the model's)")],
)
def test_a_cache_that_cannot_hold_the_longest_sequence_is_refused(overrides, whose):
    with pytest.raises(InvalidConfig) as caught:
        make_engine(Knobs(num_blocks=11, overrides=overrides))
    assert whose in str(caught.value) and "set max_model_len to 160 or less" in str(caught.value)


def shrinking_engine(num_blocks, at_step=3, **knobs):
    """Its cache has `num_blocks` after a crash at `at_step`."""
    engine = make_engine(Knobs(num_blocks=100, **knobs))
    engine.executor.crash_at = {at_step}
    restart = engine.executor.restart

    def restart_smaller():
        engine.executor.capacity = replace(engine.executor.capacity, num_gpu_blocks=num_blocks)
        return restart()

    engine.executor.restart = restart_smaller
    return engine


@pytest.mark.parametrize("swap_seconds", [0.0, float("inf")])
@pytest.mark.parametrize(("depth", "runs_ahead"), [(1, False), (2, True), (2, False)])
def test_after_a_restart_with_less_cache_what_fits_goes_on_and_what_does_not_is_told(depth, runs_ahead, swap_seconds):
    requests = [
        # It has 300 tokens when the cache has room for 160.
        Request("long", [1] * 300, SamplingParams(max_tokens=20, seed=1, ignore_eos=True), 0, None),
        Request("short", [2] * 30, SamplingParams(max_tokens=20, seed=2, ignore_eos=True), 0, None),
        # They would grow to 180 and 512 tokens; one has ended before it has 160.
        Request("grows", [3] * 100, SamplingParams(max_tokens=80, seed=3, ignore_eos=True), 0, None),
        Request("ends", [4] * 30, SamplingParams(max_tokens=None, seed=4), 0, None),
        Request("exact", [5] * 100, SamplingParams(max_tokens=60, seed=5, ignore_eos=True), 0, None),
    ]
    expected = run(make_engine(Knobs()), requests)
    engine = shrinking_engine(
        11, depth=depth, runs_ahead=runs_ahead, num_cpu_blocks=50, swap_seconds_per_block=swap_seconds
    )
    answers = run(engine, requests, rng=None)
    for request_id in ("short", "ends", "exact"):
        assert essence(answers[request_id]) == essence(expected[request_id])
    for request_id in ("long", "grows"):
        assert answers[request_id].error_code == "cache_too_small"
        assert "cache blocks, and there are 10 since" in answers[request_id].error
    assert "161 tokens so far need 11 cache blocks" in answers["grows"].error
    assert expected["grows"].outputs[0].token_ids[:61] == answers["grows"].outputs[0].token_ids, "it is told all it got"
    assert engine.stats().num_free_gpu_blocks == engine.stats().num_gpu_blocks


def test_beams_that_outgrow_a_smaller_cache_are_told():
    beams = Request("beams", [5] * 30, SamplingParams(beam_width=4, temperature=0.0, max_tokens=60), 0, None)
    after = Request("after", [6] * 30, SamplingParams(seed=1, max_tokens=20, ignore_eos=True), 0, None)
    for num_blocks in (6, 9, 12):
        answers = run(shrinking_engine(num_blocks, num_cpu_blocks=50), [beams, after])
        assert answers["beams"].error_code == "cache_too_small"
        assert answers["after"].outputs[0].token_ids == truth(after, 0, seed=1)
