"""How a step's tokens are dealt out among prompts and sequences that decode."""

from typing import Any

import pytest

from engine.sampling_params import SamplingParams
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine


@pytest.mark.parametrize(("depth", "runs_ahead"), [(1, False), (2, True), (2, False)])
def test_stages_work_on_different_parts_of_the_prompts_at_once(depth: int, runs_ahead: bool) -> None:
    engine = make_engine(Knobs(depth=depth, runs_ahead=runs_ahead, overrides={"device": "cpu"}))
    for number in range(4):
        add_request(
            engine, str(number), [number + 6] * 400, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        )
    while engine.has_unfinished_requests():
        engine.step()
    sizes = [int(record.num_tokens.sum()) for record in engine.recorder.timeline.records]
    if depth == 1 or runs_ahead:
        assert sizes[0] == 1600
    else:
        assert sizes[:3] == [100, 94, 88]  # a sixteenth of what is left
        assert 32 in prompt_tokens(engine)  # as many as a stage computes while it reads its weights
        # Sequences that decode and parts of prompts are in the same steps, so that steps take
        # equally long.
        assert any(1 in record.num_tokens and max(record.num_tokens) > 1 for record in engine.recorder.timeline.records)


def test_a_prompt_that_takes_a_free_place_is_spread_over_steps_however_many_wait_behind_it() -> None:
    engine = make_engine(Knobs(num_blocks=1000, depth=2, overrides={"device": "cpu", "max_num_seqs": 2}))
    for number in range(40):
        params = SamplingParams(max_tokens=8 + number % 2, temperature=0, ignore_eos=True)
        add_request(engine, str(number), [number % 30 + 6, *[7] * 99], params)
    while engine.has_unfinished_requests():
        engine.step()
    assert 32 <= max(prompt_tokens(engine)) <= 34  # and what the other one's token may take, if it is not known yet


def test_a_newcomers_prompt_gets_on_beside_many_that_decode() -> None:
    engine = make_engine(Knobs(num_blocks=1000, depth=2, overrides={"device": "cpu", "max_num_seqs": 64}))
    for number in range(60):
        add_request(engine, str(number), [number % 30 + 6], SamplingParams(max_tokens=60, ignore_eos=True))
    while not (sizes := prompt_tokens(engine)) or sizes[-1]:
        engine.step()
    add_request(engine, "newcomer", [7] * 100, SamplingParams(max_tokens=1))
    finish(engine)
    assert [size for size in prompt_tokens(engine) if size] == [32, 32, 32, 4]


@pytest.mark.parametrize(("depth", "runs_ahead"), [(1, False), (2, True), (2, False), (3, False)])
def test_a_long_prompt_that_comes_first_in_order_leaves_decoding_sequences_their_token(depth, runs_ahead) -> None:
    overrides = {"max_num_batched_tokens": 40, "scheduling_policy": "priority", "max_num_seqs": 16, "device": "cpu"}
    engine = make_engine(Knobs(num_blocks=1000, depth=depth, runs_ahead=runs_ahead, overrides=overrides))
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    for number in range(8):
        add_request(engine, str(number), [number + 6], params)
    while engine.stats().num_generation_tokens < 16:
        engine.step()
    add_request(engine, "long", [7] * 450, SamplingParams(max_tokens=1), priority=-1)
    while "long" not in {output.request_id for output in engine.step()}:
        pass
    records = [record for record in engine.recorder.timeline.records if "long" in record.request_ids]
    assert len(records) >= 14, "the prompt has what the others leave"
    window = 1 if runs_ahead else depth
    for start in range(len(records) - window + 1):
        served = {name for record in records[start : start + window] for name in record.request_ids}
        assert served == {"long", *map(str, range(8))}, (
            "who decodes has a token in each step, or in one of each stage's"
        )


def prompt_tokens(engine):
    """Of each step, without prompts of a single token."""
    return [int(record.num_tokens[record.num_tokens > 1].sum()) for record in engine.recorder.timeline.records]


@pytest.mark.parametrize(
    ("wishes", "is_ahead"),
    [
        ({}, True),
        ({"repetition_penalty": 1.1, "presence_penalty": 0.5}, True),  # workers have its tokens
        ({"bad_words": ["a b"]}, True),  # and compare the last one
        ({"beam_width": 2, "temperature": 0}, False),
    ],
    ids=["plain", "penalties", "bad words", "beams"],
)
def test_who_is_computed_before_its_last_token_is_known(wishes: dict[str, Any], is_ahead: bool) -> None:
    engine = make_engine(Knobs(depth=2, runs_ahead=True))
    add_request(engine, "r", [7] * 20, SamplingParams(max_tokens=9, **wishes))
    first = engine.scheduler.schedule()
    assert first.scheduled[0].num_samples == 1
    assert bool(engine.scheduler.schedule().scheduled) == is_ahead
