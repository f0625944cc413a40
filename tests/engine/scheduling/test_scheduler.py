"""Who is in a step, and with how many tokens. The choices of a request share the prompt, take turns
where there is no room for all, and give up what they leave.
"""

import pytest

from engine.sampling_params import SamplingParams
from engine.scheduling.plan import PlainRow
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, Request, essence, make_engine, run, truth

PROMPT = [number * 5 % 37 for number in range(100)]


def choices(n, max_tokens=60, prompt=PROMPT, **fields):
    return Request("r", prompt, SamplingParams(n=n, seed=1, max_tokens=max_tokens, **fields), 0, None)


def computed(engine):
    """Tokens, those that a preemption had computed again included."""
    return sum(int(record.num_tokens.sum()) for record in engine.recorder.timeline.records)


def parts(engine):
    """The next step, scheduled and not executed: for each sequence the request, its first position,
    how many tokens, and how many are sampled.
    """
    plan = engine.scheduler.schedule()
    return [(part.group.request.id, part.start, part.num_tokens, part.num_samples) for part in plan.scheduled]


def test_prefill_chunks_and_decode_are_one_rule():
    engine = make_engine(Knobs(depth=2, runs_ahead=True, overrides={"max_num_batched_tokens": 32}))
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    add_request(engine, "a", [1] * 20, params)
    add_request(engine, "b", [2] * 30, params)
    assert parts(engine) == [("a", 0, 20, 1), ("b", 0, 12, 0)]
    assert parts(engine) == [("a", 20, 1, 1), ("b", 12, 18, 1)]
    assert parts(engine) == [("b", 30, 1, 1)], "both tokens of the first one are on their way"
    assert parts(engine) == [], "those of the second, too"


def test_a_token_that_is_not_known_is_waited_for():
    engine = make_engine(Knobs(depth=2, runs_ahead=False))
    add_request(engine, "a", [1] * 20, SamplingParams(max_tokens=2))
    assert parts(engine) == [("a", 0, 20, 1)]
    step = engine.scheduler.step
    assert engine.scheduler.schedule().is_empty and engine.scheduler.step == step


def plain_positions(knobs, request, monkeypatch):
    """Those of the plain rows of all steps that answer the request."""
    engine, plans = make_engine(knobs), []
    schedule = engine.scheduler.schedule
    monkeypatch.setattr(engine.scheduler, "schedule", lambda *args: plans.append(schedule(*args)) or plans[-1])
    assert run(engine, [request])["r"].finished
    all_parts = [part for plan in plans for part in plan.scheduled]
    assert [part for plan in plans for part in plan.others] == [p for p in all_parts if not isinstance(p, PlainRow)]
    return [part.start for part in all_parts if isinstance(part, PlainRow)]


@pytest.mark.parametrize("knobs", [Knobs(depth=1), Knobs(depth=2, runs_ahead=True)])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1, "min_tokens": 9},
        {"allowed_token_ids": [*range(6, 30)], "logit_bias": {3: 1.0}},
        {"bad_words": ["lemon tree"]},
    ],
)
def test_a_sequence_goes_on_by_plain_rows_but_for_its_end(asked, knobs, monkeypatch):
    """Position 31 fills a block, 32 needs one, and 38 gives the last token."""
    request = choices(1, max_tokens=20, prompt=PROMPT[:20], ignore_eos=True, **asked)
    assert plain_positions(knobs, request, monkeypatch) == [*range(20, 38)]


@pytest.mark.parametrize(
    "asked",
    [
        {"n": 2},
        {"best_of": 1},
        {"logprobs": 0},
        {"prompt_logprobs": 0},
        {"stop": ["x"]},
    ],
)
def test_no_row_is_plain_of_which_more_is_wanted(asked, monkeypatch):
    request = choices(**({"n": 1} | asked), max_tokens=20, prompt=PROMPT[:20], ignore_eos=True)
    assert plain_positions(Knobs(), request, monkeypatch) == []


@pytest.mark.parametrize(("num_tokens", "is_admitted"), [(80, True), (81, False)])
def test_newcomers_leave_the_watermark_to_those_who_run(num_tokens, is_admitted):
    """Of ten blocks three are taken and two are for those who run."""
    engine = make_engine(Knobs(num_blocks=11, overrides={"watermark": 0.2}))
    add_request(engine, "runs", [1] * 48, SamplingParams(max_tokens=2))
    assert parts(engine) == [("runs", 0, 48, 1)]
    add_request(engine, "new", [2] * num_tokens, SamplingParams(max_tokens=2))
    assert parts(engine) == ([("new", 0, num_tokens, 1)] if is_admitted else [])


def test_whoever_is_swapped_out_comes_back_before_newcomers_are_admitted():
    engine = make_engine(Knobs(num_blocks=11, num_cpu_blocks=11, depth=2, runs_ahead=True))
    add_request(engine, "big", [1] * 100, SamplingParams(max_tokens=2))
    engine.scheduler.schedule()
    (lane,) = engine.scheduler.queues.running
    engine.scheduler.queues.swap_out(lane)
    lane.seqs[0].num_pending = 0
    lane.seqs[0].token_ids.append(7)
    add_request(engine, "new", [2] * 30, SamplingParams(max_tokens=2))
    assert parts(engine) == [("big", 100, 1, 1), ("new", 0, 30, 1)]


@pytest.mark.parametrize("swap_seconds", [0.0, float("inf")])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [11, 15, 25])
def test_choices_that_do_not_fit_together_take_turns(num_blocks, enable_prefix_caching, swap_seconds):
    """Eight times ten blocks are wanted, of which six are shared."""
    request = choices(8, ignore_eos=True)
    overrides = {"enable_prefix_caching": enable_prefix_caching}
    knobs = Knobs(num_blocks, 100, swap_seconds_per_block=swap_seconds, depth=2, runs_ahead=True, overrides=overrides)
    engine = make_engine(knobs)
    answer = run(engine, [request])["r"]
    assert [choice.token_ids for choice in answer.outputs] == [truth(request, n, seed=1) for n in range(8)]
    assert engine.stats().num_free_gpu_blocks == num_blocks - 1


@pytest.mark.parametrize("fields", [{"n": 8}, {"n": 3, "best_of": 8}])
def test_without_max_tokens_the_end_depends_on_neither_n_nor_the_cache(fields):
    params = SamplingParams(**fields, seed=1, max_tokens=None, ignore_eos=True, logprobs=1)
    request = Request("r", PROMPT[:30], params, 0, None)
    overrides = {"max_model_len": 144}
    roomy = run(make_engine(Knobs(400, overrides=overrides)), [request])["r"]
    scarce = run(make_engine(Knobs(10, num_cpu_blocks=30, overrides=overrides)), [request])["r"]
    assert essence(scarce) == essence(roomy)
    assert {len(choice.token_ids) for choice in roomy.outputs} == {114}


def test_more_choices_than_places_take_turns():
    request = choices(10, ignore_eos=True)
    engine = make_engine(Knobs(overrides={"max_num_seqs": 3}))
    answer = run(engine, [request])["r"]
    assert [choice.token_ids for choice in answer.outputs] == [truth(request, n, seed=1) for n in range(10)]
    assert max(len(record.request_ids) for record in engine.recorder.timeline.records) == 3


def test_a_request_of_many_choices_begins_with_the_places_that_are_free():
    engine = make_engine(Knobs(overrides={"max_num_seqs": 8}))
    for number in range(6):
        add_request(engine, str(number), [number + 6], SamplingParams(max_tokens=60, ignore_eos=True))
    while engine.stats().num_generation_tokens < 12:
        engine.step()
    add_request(engine, "r", PROMPT, SamplingParams(n=128, seed=3, max_tokens=4, ignore_eos=True))
    add_request(engine, "next", [7], SamplingParams(max_tokens=4, ignore_eos=True))
    counts, ends = [], {}
    while engine.has_unfinished_requests():
        ends |= {output.request_id: len(counts) for output in engine.step() if output.finished}
        counts.append(engine.recorder.timeline.records[-1].request_ids.count("r"))
    assert counts[0] == 2
    assert max(counts) == 8
    assert sum(counts) == 128 * 4
    assert 0 <= ends["next"] - ends["r"] <= 4, "it came after all the choices, and at once then"


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("threshold", [0, 7])
def test_choices_compute_the_prompt_once(enable_prefix_caching, threshold):
    overrides = {"enable_prefix_caching": enable_prefix_caching, "long_prefill_token_threshold": threshold}
    engine = make_engine(Knobs(overrides=overrides))
    answer = run(engine, [choices(8, max_tokens=10, ignore_eos=True)])["r"]
    # Of the others' prompt only what is in no full block; the last token of each is never read.
    assert computed(engine) == 100 + 7 * (100 - 96) + 8 * 9
    assert answer.num_cached_tokens == 0


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_choices_share_the_prompt_again_after_a_crash(enable_prefix_caching):
    engine = make_engine(Knobs(overrides={"enable_prefix_caching": enable_prefix_caching}))
    engine.executor.crash_at = {6}
    request = choices(8, max_tokens=10, ignore_eos=True)
    answer = run(engine, [request])["r"]
    assert [choice.token_ids for choice in answer.outputs] == [truth(request, n, seed=1) for n in range(8)]
    again = [int(record.num_tokens.sum()) for record in engine.recorder.timeline.records if record.epoch == 1]
    # Six tokens were known of each choice: 106 positions, ten of them in no full block of the
    # prompt.
    assert again[0] == 106 + 7 * 10
    assert answer.num_cached_tokens == 0, "what a recovery finds in the cache is not the prompt's having been there"


def test_resumed_choices_share_the_prompt():
    request = choices(8, max_tokens=10, ignore_eos=True)
    whole = [truth(request, n, seed=1) for n in range(8)]
    engine = make_engine(Knobs())
    add_request(engine, "r", PROMPT, request.params, output_ids=[tokens[:4] for tokens in whole], attempt=1)
    engine.step()
    assert computed(engine) == 104 + 7 * 8


def test_a_resumed_request_is_not_told_that_its_outputs_were_cached():
    request = choices(1, max_tokens=40, ignore_eos=True)
    engine = make_engine(Knobs())
    whole = run(engine, [request])["r"].outputs[0].token_ids
    add_request(engine, "again", PROMPT, request.params, output_ids=[whole[:30]], attempt=1)
    (told,) = engine.step()
    assert told.num_cached_tokens == len(PROMPT)


def test_a_choice_that_has_ended_gives_up_its_place():
    engine = make_engine(Knobs(overrides={"max_num_seqs": 4}))
    # Choices end at tokens of their own: the last one alone for a while.
    add_request(engine, "r", PROMPT, SamplingParams(n=4, seed=3, max_tokens=200))
    add_request(engine, "next", [7], SamplingParams(max_tokens=200, ignore_eos=True))
    beside = 0
    while engine.has_unfinished_requests():
        engine.step()
        last = engine.recorder.timeline.records[-1].request_ids if engine.recorder.timeline.records else []
        beside += "r" in last and "next" in last
    assert beside > 0


def test_choices_that_are_swapped_out_share_the_prompt_when_they_come_back():
    engine = make_engine(Knobs(24, num_cpu_blocks=200))
    request = choices(8, ignore_eos=True)
    answer = run(engine, [request])["r"]
    assert [choice.token_ids for choice in answer.outputs] == [truth(request, n, seed=1) for n in range(8)]
    stats = engine.stats()
    assert stats.num_preemptions_swap > 0
    assert stats.num_blocks_swapped_in < 6 * stats.num_preemptions_swap, "the prompt's six blocks stay on the device"


def test_a_request_counts_once_however_many_choices_wait_or_run():
    engine = make_engine(Knobs(overrides={"max_num_seqs": 4, "max_num_batched_tokens": 32}))
    for request_id in ("a", "b"):
        add_request(engine, request_id, PROMPT, SamplingParams(n=8, max_tokens=20, ignore_eos=True))
    assert engine.stats().num_requests_waiting == 2
    for _ in range(8):
        engine.step()
    stats = engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (1, 2)


def test_prompt_logprobs_are_the_first_choices_work_and_the_others_share_its_blocks():
    params = SamplingParams(n=4, seed=3, max_tokens=6, prompt_logprobs=1, ignore_eos=True)
    engine = make_engine(Knobs())
    engine.executor.crash_at = {3}
    answer = run(engine, [Request("r", PROMPT, params, 0, None)])["r"]
    assert len(answer.prompt_logprobs) == len(PROMPT)
    first, *_, again = (int(engine.recorder.timeline.records[index].num_tokens.sum()) for index in (0, 1, 3))
    assert first == 100 + 3 * 4
    assert again == 103 + 3 * 7, "known logprobs are not computed again"


def test_beams_share_again_after_a_crash():
    beams = Request("r", PROMPT, SamplingParams(beam_width=4, temperature=0.0, max_tokens=12), 0, None)
    expected = run(make_engine(Knobs()), [beams])["r"]
    engine = make_engine(Knobs())
    engine.executor.crash_at = {6}
    assert essence(run(engine, [beams])["r"]) == essence(expected)
    again = [int(record.num_tokens.sum()) for record in engine.recorder.timeline.records if record.epoch == 1]
    assert again[0] <= 106 + 3 * 10
