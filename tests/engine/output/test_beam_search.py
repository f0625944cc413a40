"""Beams: what a step looks at is bounded, and enough; what would take more is refused."""

import random
from dataclasses import replace

import pytest

from engine.admission import admission
from engine.errors import InvalidRequest
from engine.output.beam_search import MAX_CANDIDATES
from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import check_request
from tests.engine.support.demo import answers, demo_engine, held_out_prompts
from tests.engine.support.workloads import VOCAB, Knobs, Request, essence, make_engine, run


def beams(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        beam_width=rng.randint(1, 16),
        temperature=0.0,
        max_tokens=rng.randint(1, 12),
        stop_token_ids=rng.sample(range(VOCAB), rng.choice((0, 1, 5, 30))),
        length_penalty=rng.choice((0.0, 1.0)),
        early_stopping=rng.random() < 0.5,
    )


def test_looking_at_few_candidates_chooses_as_looking_at_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    requests = [
        Request(f"r{n}", [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))], beams(rng), 0, None)
        for n in range(60)
    ]
    few = run(make_engine(Knobs(num_blocks=2000)), requests)
    monkeypatch.setattr(admission, "num_candidates", lambda params, stop_token_ids, vocab_size: vocab_size)
    every = run(make_engine(Knobs(num_blocks=2000)), requests)
    assert all(answer.error is None for answer in few.values())
    assert {name: essence(answer) for name, answer in few.items()} == {
        name: essence(answer) for name, answer in every.items()
    }


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_beams_times_stop_tokens_may_exceed_the_vocabulary(backend: str) -> None:
    (prompt,) = held_out_prompts(1)
    params = SamplingParams(beam_width=16, temperature=0, max_tokens=6, stop_token_ids=range(400, 460))
    with demo_engine(ops_backend=backend) as engine:
        (answer,) = answers(engine, [(prompt, params)])
        assert answer.error is None and answer.outputs[0].finish_reason in ("stop", "length")
        assert engine.stats().num_failed_steps == 0


def test_beams_that_a_step_cannot_bear_are_refused() -> None:
    engine = make_engine(Knobs())
    engine.admission.limits = replace(engine.admission.limits, vocab_size=1000)
    width, num_stops = 16, MAX_CANDIDATES - 17
    bearable = SamplingParams(beam_width=width, temperature=0, max_tokens=1, stop_token_ids=range(6, 6 + num_stops))
    check_request(engine, [1], bearable)
    with pytest.raises(InvalidRequest) as caught:
        check_request(engine, [1], replace(bearable, beam_width=width + 1))
    assert caught.value.param == "beam_width"
    assert f"{MAX_CANDIDATES + 1} candidates of each beam; at most {MAX_CANDIDATES}" in caught.value.message


def test_more_logprobs_than_there_are_tokens_are_refused() -> None:
    engine = make_engine(Knobs())
    engine.admission.limits = replace(engine.admission.limits, vocab_size=12)
    with pytest.raises(InvalidRequest, match="logprobs=13 exceeds the vocabulary of 12"):
        check_request(engine, [1], SamplingParams(logprobs=13))
