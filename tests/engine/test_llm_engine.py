"""What a user of the engine is promised, on the history executor: refusals, isolation, pressure,
times that add up.
"""

import random
from dataclasses import replace

import pytest

from engine.errors import EngineDead, InvalidConfig, InvalidRequest
from engine.outputs import Accumulator
from engine.sampling_params import SamplingParams
from tests.engine.arrivals import add_request
from tests.engine.workloads import (
    EOS,
    TOKENIZER,
    VOCAB,
    Knobs,
    Request,
    essence,
    make_engine,
    random_requests,
    run,
    truth,
)


def finish(engine):
    joined = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            joined.setdefault(output.request_id, Accumulator()).add(output)
    return {request_id: total.last for request_id, total in joined.items()}


@pytest.mark.parametrize(
    ("prompt", "fields", "param", "said"),
    [
        ([], {}, "prompt", "empty"),
        ([VOCAB], {}, "prompt", str(VOCAB)),
        ([-1], {}, "prompt", "-1"),
        ([1] * 600, {}, "prompt", "600 prompt tokens"),
        ([1] * 10, {"max_tokens": 503}, "prompt", "exceed the context of 512"),
        ([1] * 100, {"beam_width": 8, "max_tokens": 400}, "max_tokens", "max_tokens=92 would fit"),
        (
            [1] * 100,
            {"beam_width": 8, "max_tokens": None},
            "max_tokens",
            "8 beams of up to 512 tokens need 256 cache blocks",
        ),
        ([1], {"stop_token_ids": [VOCAB]}, "stop_token_ids", str(VOCAB)),
        ([1], {"logit_bias": {VOCAB: 1.0}}, "logit_bias", str(VOCAB)),
        ([1], {"beam_width": 33}, "beam_width", "max_num_seqs=32"),
        ([1], {"allowed_token_ids": [EOS], "min_tokens": 3}, "min_tokens", "all are stop tokens"),
        ([1], {"stop_token_ids": list(range(VOCAB)), "min_tokens": 3}, "min_tokens", "all are stop tokens"),
    ],
)
def test_what_can_never_run_is_refused_when_it_is_added(prompt, fields, param, said):
    engine = make_engine(Knobs(num_blocks=100))
    with pytest.raises(InvalidRequest) as caught:
        add_request(engine, "r", prompt, SamplingParams(**fields))
    assert caught.value.param == param and said in caught.value.message
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("num_blocks", [33, 100])
def test_without_max_tokens_the_rest_of_the_context_is_filled(num_blocks):
    engine = make_engine(Knobs(num_blocks=num_blocks, overrides={"max_model_len": 500}))
    add_request(engine, "r", [1] * 488, SamplingParams(max_tokens=None, ignore_eos=True))
    choice = finish(engine)["r"].outputs[0]
    assert len(choice.token_ids) == 12 and choice.finish_reason == "length"


@pytest.mark.parametrize(
    ("overrides", "whose"),
    [({"max_model_len": 161}, "max_model_len=161"), ({"max_model_len": None}, "512 (the model's)")],
)
def test_a_cache_that_cannot_hold_the_longest_sequence_is_refused(overrides, whose):
    with pytest.raises(InvalidConfig) as caught:
        make_engine(Knobs(num_blocks=11, overrides=overrides))
    assert whose in str(caught.value) and "set max_model_len to 160 or less" in str(caught.value)


def test_what_is_sure_to_exceed_the_context_is_refused():
    engine = make_engine(Knobs(overrides={"max_model_len": 100}))
    with pytest.raises(InvalidRequest, match="90 prompt tokens and at least 11 to generate") as caught:
        add_request(engine, "r", [1] * 90, SamplingParams(max_tokens=None, min_tokens=11))
    assert caught.value.code == "context_length_exceeded"


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
        if next(calls) == 9:
            raise RuntimeError("detokenizer trouble")
        return whole(*arguments)

    monkeypatch.setattr(engine.processor.detokenizer, "push", push)
    answers = run(engine, requests)
    failed = [answer for answer in answers.values() if answer.error is not None]
    assert len(failed) == 1 and "detokenizer trouble" in failed[0].error
    assert sum(essence(answers[r.request_id]) == essence(undisturbed[r.request_id]) for r in requests) == 3


def test_an_exception_in_one_beam_search_fails_it_alone(monkeypatch):
    def broken(group, blocks):
        raise OverflowError("beam trouble")

    monkeypatch.setattr("engine.beam_search.advance", broken)
    beams = Request("beams", [5] * 20, SamplingParams(beam_width=2, temperature=0.0, max_tokens=9), 0, None)
    plain = Request("plain", [6] * 20, SamplingParams(seed=1, max_tokens=20, ignore_eos=True), 0, None)
    answers = run(make_engine(Knobs()), [beams, plain])
    assert answers["beams"].error == "OverflowError: beam trouble"
    assert answers["plain"].outputs[0].token_ids == truth(plain, 0, seed=1)


@pytest.mark.parametrize("swap_seconds", [0.0, float("inf")])
def test_a_quarter_of_the_cache_loses_nothing(swap_seconds):
    rng = random.Random(7)
    requests = [r for r in random_requests(rng, 60) if r.params.num_samples == 1]
    demand = sum(-(-(len(r.prompt) + r.params.max_tokens) // 16) for r in requests)
    plenty = run(make_engine(Knobs(num_blocks=demand + 1)), requests)
    engine = make_engine(Knobs(num_blocks=demand // 4 + 1, num_cpu_blocks=demand, swap_seconds_per_block=swap_seconds))
    scarce = run(engine, requests, rng=None)
    assert {key: essence(answer) for key, answer in scarce.items()} == {
        key: essence(answer) for key, answer in plenty.items()
    }
    stats = engine.stats()
    assert (stats.num_preemptions_swap if swap_seconds == 0 else stats.num_preemptions_recompute) > 0
    assert (stats.num_wasted_tokens > 0) == (swap_seconds > 0)


def test_priority_goes_first_and_nobody_waits_for_ever():
    engine = make_engine(
        Knobs(overrides={"max_num_seqs": 1, "max_num_batched_tokens": 64, "scheduling_policy": "priority"})
    )
    order = []
    for number in range(1500):
        add_request(
            engine, f"r{number}", [1 + number % 30], SamplingParams(max_tokens=1), priority=1 if number == 0 else 0
        )
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step()]
    assert order[0] == "r1", "priority 0 overtakes priority 1"
    assert order.index("r0") == 999, "but by less than a thousand"


def test_prefix_hits_are_counted_and_isolated_by_salt():
    engine = make_engine(Knobs())
    prompt = [3, 4] * 40
    for request_id, salt in (("first", None), ("second", None), ("salted", "tenant")):
        add_request(engine, request_id, prompt, SamplingParams(max_tokens=2, ignore_eos=True), cache_salt=salt)
        assert finish(engine)[request_id].num_cached_tokens == (64 if request_id == "second" else 0)
    assert engine.stats().num_prefix_hits == 64


def test_resumed_output_tokens_count_as_outputs():
    request = Request(
        "r",
        [7] * 9,
        SamplingParams(seed=5, max_tokens=30, frequency_penalty=0.5, stop=["zz"], ignore_eos=True),
        0,
        None,
    )
    whole = run(make_engine(Knobs()), [request])["r"].outputs[0]
    for cut in range(1, len(whole.token_ids)):
        engine = make_engine(Knobs())
        add_request(engine, "r", request.prompt, request.params, output_ids=[whole.token_ids[:cut]], attempt=1)
        rest = finish(engine)["r"]
        assert rest.attempt == 1 and rest.outputs[0].first_index == cut
        assert whole.token_ids[:cut] + rest.outputs[0].token_ids == whole.token_ids
        assert whole.text.endswith(rest.outputs[0].text) and rest.outputs[0].finish_reason == whole.finish_reason


def test_a_resumed_request_keeps_its_length_where_another_is_served():
    request = Request("r", [7] * 50, SamplingParams(seed=5, max_tokens=None, ignore_eos=True), 0, None)
    first = make_engine(Knobs(overrides={"max_model_len": 100}))
    add_request(first, "r", request.prompt, request.params)
    (delta,) = first.step()
    assert delta.max_tokens == 50
    first.abort_request("r")
    whole = run(first, [request])["r"].outputs[0].token_ids
    params = replace(request.params, max_tokens=delta.max_tokens)
    longer = make_engine(Knobs(overrides={"max_model_len": 200}))
    add_request(longer, "r", request.prompt, params, output_ids=[whole[:30]], attempt=1)
    assert whole[:30] + finish(longer)["r"].outputs[0].token_ids == whole
    shorter = make_engine(Knobs(overrides={"max_model_len": 90}))
    add_request(shorter, "r", request.prompt, params, output_ids=[whole[:30]], attempt=1)
    cut = finish(shorter)["r"]
    assert whole[:30] + cut.outputs[0].token_ids == whole[:40], "it is told all that it got"
    assert cut.outputs[0].finish_reason == "error" and "90 tokens fill the context here" in cut.error
    with pytest.raises(InvalidRequest, match="50 prompt tokens and at least 41 to generate exceed the context of 90"):
        add_request(shorter, "r", request.prompt, params, output_ids=[whole[:41]], attempt=1)


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


def test_resumed_with_all_of_its_tokens_it_only_ends():
    request = Request("r", [7] * 9, SamplingParams(seed=5, n=2, max_tokens=6, ignore_eos=True), 0, None)
    whole = run(make_engine(Knobs()), [request])["r"].outputs
    engine = make_engine(Knobs())
    add_request(engine, "r", request.prompt, request.params, output_ids=[choice.token_ids for choice in whole])
    (last,) = engine.step()
    assert last.finished and not engine.has_unfinished_requests()
    assert [(c.token_ids, c.first_index, c.finish_reason) for c in last.outputs] == [([], 6, "length")] * 2


def test_resumed_choices_go_on_each_by_itself():
    request = Request("r", [7] * 9, SamplingParams(seed=5, n=3, max_tokens=12, ignore_eos=True), 0, None)
    whole = run(make_engine(Knobs()), [request])["r"].outputs
    engine = make_engine(Knobs())
    add_request(engine, "r", request.prompt, request.params, output_ids=[choice.token_ids[:4] for choice in whole])
    rest = finish(engine)["r"].outputs
    assert [choice.token_ids[4:] for choice in whole] == [choice.token_ids for choice in rest]
    assert [truth(request, index, seed=5) for index in range(3)] == [choice.token_ids for choice in whole]


def test_abort_frees_everything_at_once_and_may_be_said_twice():
    engine = make_engine(Knobs())
    add_request(engine, "r", [1] * 40, SamplingParams(n=3, max_tokens=50, ignore_eos=True))
    for _ in range(5):
        engine.step()
    engine.abort_request("r")
    engine.abort_request("r")
    assert engine.stats().num_free_gpu_blocks == engine.stats().num_gpu_blocks
    assert finish(engine) == {}


def test_the_end_token_ends_and_is_not_shown_unless_wanted():
    for shown, include in (("", False), (TOKENIZER.decode([EOS]), True)):
        engine = make_engine(Knobs())
        for number in range(60):
            params = SamplingParams(seed=number, max_tokens=40, include_stop_str_in_output=include)
            add_request(engine, f"r{number}", [number % VOCAB], params)
        ended = [o.outputs[0] for o in finish(engine).values() if o.outputs[0].finish_reason == "stop"]
        assert len(ended) > 10
        for choice in ended:
            assert choice.token_ids[-1] == EOS and choice.stop_reason is None
            assert choice.text == TOKENIZER.decode(choice.token_ids[:-1]) + shown


def test_when_restarts_are_used_up_every_request_hears_why():
    engine = make_engine(Knobs(overrides={"max_restarts": 1}))
    engine.executor.crash_at = {3, 5}
    for number in range(3):
        add_request(engine, f"r{number}", [number + 1] * 5, SamplingParams(max_tokens=50, ignore_eos=True))
    answers = finish(engine)
    assert {answer.error for answer in answers.values()} == {
        "worker 0 lost: crashed on purpose; max_restarts=1 are used up"
    }
    with pytest.raises(EngineDead, match="crashed on purpose"):
        add_request(engine, "late", [1], SamplingParams())


def test_a_requests_times_sum_to_its_life_and_the_timeline_has_every_step():
    rng = random.Random(3)
    requests = [r for r in random_requests(rng, 40) if r.params.num_samples == 1]
    engine = make_engine(Knobs(num_blocks=30, num_cpu_blocks=60, depth=2, runs_ahead=True))
    engine.executor.crash_at = {20}
    answers = run(engine, requests)
    phases = set()
    for request_id, answer in answers.items():
        if answer.error is None:
            parts = engine.why(request_id)
            assert sum(parts.values()) == pytest.approx(answer.metrics.finished_time - answer.metrics.arrival_time)
            phases |= set(parts)
    assert {"queue", "prefill", "decode", "recovery"} <= phases and phases & {"swap", "preemption"}
    steps = [record.step for record in engine.timeline.records]
    assert steps == sorted(steps) and len(steps) == engine.stats().num_steps
    events = engine.timeline.chrome_trace()["traceEvents"]
    assert {event["args"]["step"] for event in events if event["name"] in ("decode", "prefill")} <= set(steps)
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    with pytest.raises(KeyError):
        engine.why("never seen")


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


def test_waiting_after_a_preemption_is_not_called_decoding():
    engine = make_engine(Knobs(num_blocks=12, depth=2, runs_ahead=True, swap_seconds_per_block=float("inf")))
    for number in range(4):
        add_request(engine, f"r{number}", [number + 1] * 30, SamplingParams(max_tokens=60, ignore_eos=True))
    waited = []
    while engine.has_unfinished_requests():
        engine.step()
        waited += [
            lane.group.metrics.phase for lane in engine.scheduler.queues.waiting if lane.group.metrics.num_preemptions
        ]
    assert waited and set(waited) == {"preemption"}


def test_prompt_logprobs_of_resumed_choices_come_once():
    params = SamplingParams(n=2, seed=3, max_tokens=6, prompt_logprobs=1, ignore_eos=True)
    request = Request("r", [7, 8, 9, 10, 11, 12], params, 0, None)
    whole = run(make_engine(Knobs()), [request])["r"]
    assert len(whole.prompt_logprobs) == len(request.prompt)
    engine = make_engine(Knobs())
    add_request(engine, "r", request.prompt, params, output_ids=[choice.token_ids[:2] for choice in whole.outputs])
    rest = finish(engine)["r"]
    assert rest.prompt_logprobs is None, "the first attempt has sent them"
    assert [choice.token_ids[2:] for choice in whole.outputs] == [choice.token_ids for choice in rest.outputs]


@pytest.mark.parametrize(("depth", "runs_ahead"), [(1, False), (2, True), (2, False)])
def test_stages_work_on_different_parts_of_the_prompts_at_once(depth: int, runs_ahead: bool) -> None:
    engine = make_engine(Knobs(depth=depth, runs_ahead=runs_ahead, overrides={"device": "cpu"}))
    for number in range(4):
        add_request(
            engine, str(number), [number + 6] * 400, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        )
    while engine.has_unfinished_requests():
        engine.step()
    sizes = [int(record.num_tokens.sum()) for record in engine.timeline.records]
    if depth == 1 or runs_ahead:
        assert sizes[0] == 1600
    else:
        assert sizes[:3] == [100, 94, 88]  # a sixteenth of what is left
        assert 32 in prompt_tokens(engine)  # as many as a stage computes while it reads its weights
        # Sequences that decode and parts of prompts are in the same steps, so that steps take
        # equally long.
        assert any(1 in record.num_tokens and max(record.num_tokens) > 1 for record in engine.timeline.records)


def test_a_prompt_that_takes_a_free_seat_is_spread_over_steps_however_many_wait_behind_it() -> None:
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
    records = [record for record in engine.timeline.records if "long" in record.request_ids]
    assert len(records) >= 14, "the prompt has what the others leave"
    window = 1 if runs_ahead else depth
    for start in range(len(records) - window + 1):
        served = {name for record in records[start : start + window] for name in record.request_ids}
        assert served == {"long", *map(str, range(8))}, (
            "who decodes has a token in each step, or in one of each stage's"
        )


def prompt_tokens(engine):
    """Of each step, without prompts of a single token."""
    return [int(record.num_tokens[record.num_tokens > 1].sum()) for record in engine.timeline.records]
