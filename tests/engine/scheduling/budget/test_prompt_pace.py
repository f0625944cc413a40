"""Prompts beside sequences that decode: these wait for a step no longer than they may."""

from engine.sampling_params import SamplingParams
from tests.engine.scheduling.budget.test_token_budget import prompt_tokens
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine


def test_a_step_takes_no_longer_for_prompts_than_those_who_decode_may_wait() -> None:
    engine = make_engine(Knobs(num_blocks=1000, overrides={"max_decode_wait_ms": 200}))
    engine.executor.ns_per_token = 1_000_000
    add_request(engine, "decoding", [6], SamplingParams(max_tokens=400, ignore_eos=True))
    engine.step()
    for number, name in enumerate(("first", "second")):
        add_request(engine, name, [number + 7] * 450, SamplingParams(max_tokens=1))
        while name not in {output.request_id for output in engine.step() if output.finished}:
            pass
    sizes = [size for size in prompt_tokens(engine) if size]
    assert sizes == [450, 199, 199, 52], "the first one tells how long they take"
    engine.executor.slow_ns[engine.scheduler.step] = 10_000_000_000  # something else on the machine
    add_request(engine, "third", [9] * 450, SamplingParams(max_tokens=1))
    finish(engine)
    assert [size for size in prompt_tokens(engine) if size][4:] == [199, 32, 199, 20]


def test_prompts_have_as_much_of_a_slow_models_time_as_decoding_has() -> None:
    """Its steps take longer than they may before they have a prompt token."""
    engine = make_engine(Knobs(num_blocks=1000, overrides={"max_decode_wait_ms": 200}))
    engine.executor.ns_per_token, engine.executor.ns_per_step = 1_000_000, 300_000_000
    add_request(engine, "decoding", [6], SamplingParams(max_tokens=400, ignore_eos=True))
    for _ in range(4):
        engine.step()
    add_request(engine, "first", [7] * 450, SamplingParams(max_tokens=1))  # tells how long they take
    engine.step()
    engine.step()
    for number in range(4):
        add_request(engine, str(number), [number + 8] * 450, SamplingParams(max_tokens=1))
    finish(engine)
    sizes = [size for size in prompt_tokens(engine) if size][2:-1]
    # A step that decodes takes 301 ms, one with 300 prompt tokens more twice that.
    assert min(sizes) >= 290 and max(sizes) <= 330, sizes


def test_one_slow_step_does_not_make_the_next_ones_long() -> None:
    engine = make_engine(Knobs(num_blocks=1000, overrides={"max_decode_wait_ms": 200}))
    engine.executor.ns_per_token = 1_000_000
    add_request(engine, "decoding", [6], SamplingParams(max_tokens=400, ignore_eos=True))
    add_request(engine, "first", [7] * 450, SamplingParams(max_tokens=1))
    for _ in range(8):
        engine.step()
    engine.executor.slow_ns[engine.scheduler.step] = 10_000_000_000
    engine.step()
    add_request(engine, "second", [8] * 450, SamplingParams(max_tokens=1))
    finish(engine)
    assert [size for size in prompt_tokens(engine) if size][-3:] == [199, 199, 52]


def test_a_prompt_that_nobody_decodes_beside_is_computed_at_once() -> None:
    engine = make_engine(Knobs(num_blocks=1000, overrides={"max_decode_wait_ms": 200}))
    engine.executor.ns_per_token = 1_000_000
    for number in range(2):
        add_request(engine, str(number), [number + 6] * 450, SamplingParams(max_tokens=1))
        finish(engine)
    assert prompt_tokens(engine) == [450, 450]


def test_without_a_limit_prompts_take_as_many_tokens_as_a_step_has() -> None:
    engine = make_engine(Knobs(num_blocks=1000, overrides={"max_decode_wait_ms": 0}))
    engine.executor.ns_per_token = 1_000_000
    add_request(engine, "decoding", [6], SamplingParams(max_tokens=40, ignore_eos=True))
    engine.step()
    for number in range(2):
        add_request(engine, str(number), [number + 7] * 450, SamplingParams(max_tokens=1))
    finish(engine)
    assert [size for size in prompt_tokens(engine) if size] == [900]
