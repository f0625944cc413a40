"""Which sequences get drafts, how many, and what waits for them."""

from itertools import pairwise

import pytest

from engine.request import Share
from engine.sampling_params import SamplingParams
from engine.scheduling.drafts.drafter import Drafter
from engine.scheduling.drafts.drafting import MAX_ROWS
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import Knobs, finish, make_engine

PARAMS = SamplingParams(max_tokens=30, ignore_eos=True)


def engine_with_drafts(*, num_stages=1, runs_ahead=False, **overrides):
    knobs = {"speculative_config": {"num_speculative_tokens": 8}, "max_num_seqs": 64} | overrides
    return make_engine(Knobs(num_blocks=1000, depth=num_stages + runs_ahead, runs_ahead=runs_ahead, overrides=knobs))


@pytest.fixture
def wrong(monkeypatch):
    """Every guess is, of eight tokens: random ones hardly ever repeat what has been."""
    monkeypatch.setattr(Drafter, "guess", lambda self, token_ids, most: [1] * min(most, 8))
    monkeypatch.setattr(Drafter, "judge", lambda *_: None)


def rows_by_step(engine):
    """Sequences and drafts of each step without prompts."""
    records = engine.recorder.timeline.records
    steps = [(record.num_tokens, record.num_drafts or [0] * len(record.num_tokens)) for record in records]
    return [(len(tokens), sum(drafts)) for tokens, drafts in steps if sum(tokens) == len(tokens) + sum(drafts)]


@pytest.mark.parametrize("num_seqs", [1, 3, 20, MAX_ROWS - 1, MAX_ROWS, 40])
def test_sequences_and_drafts_together_are_few(wrong, num_seqs):
    engine = engine_with_drafts()
    for number in range(num_seqs):
        add_request(engine, str(number), [number % 30 + 6], PARAMS)
    finish(engine)
    rows = rows_by_step(engine)
    assert all(seqs + drafts <= max(MAX_ROWS, seqs) for seqs, drafts in rows)
    full = [drafts for seqs, drafts in rows if seqs == num_seqs]
    assert max(full, default=0) == max(min(8 * num_seqs, MAX_ROWS - num_seqs), 0)


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize(("num_seqs", "is_plain"), [(MAX_ROWS - 1, False), (MAX_ROWS, True), (40, True)])
def test_rows_are_plain_where_no_draft_can_come(wrong, num_seqs, is_plain, runs_ahead, monkeypatch):
    engine, plans = engine_with_drafts(runs_ahead=runs_ahead), []
    schedule = engine.scheduler.schedule
    monkeypatch.setattr(engine.scheduler, "schedule", lambda *args: plans.append(schedule(*args)) or plans[-1])
    for number in range(num_seqs):
        add_request(engine, str(number), [number % 30 + 6], SamplingParams(max_tokens=8, ignore_eos=True))
    finish(engine)
    decoding = [plan for plan in plans if plan.num_tokens == len(plan.scheduled) + plan.num_drafts > 0]
    decoding = [plan for plan in decoding if len(plan.scheduled) == num_seqs][1:-1]
    assert decoding and [bool(plan.others) for plan in decoding] == [not is_plain] * len(decoding)
    assert any(plan.num_drafts for plan in decoding) is not is_plain


def test_prompts_have_their_share_of_a_step_beside_drafts(wrong):
    engine = engine_with_drafts(max_num_batched_tokens=24, max_num_seqs=8)
    add_request(engine, "drafting", [6], PARAMS)
    while engine.stats().num_generation_tokens < 3:
        engine.step()
    add_request(engine, "newcomer", [7] * 60, SamplingParams(max_tokens=1))
    finish(engine)
    both = [record.num_tokens.tolist() for record in engine.recorder.timeline.records if len(record.num_tokens) == 2]
    assert [first + second for first, second in both[:3]] == [24, 24, 24]
    assert all(first == 9 for first, _ in both[:3])


@pytest.mark.parametrize(
    "options",
    [
        {"beam_width": 2, "temperature": 0.0},
        {"bad_words": ["x"]},
        {"thinking_token_budget": 3},
    ],
)
def test_what_hangs_on_more_than_the_text_has_none(wrong, options):
    engine = engine_with_drafts()
    add_request(engine, "r", [6], SamplingParams(max_tokens=10, ignore_eos=True, **options))
    finish(engine)
    assert engine.recorder.measures.copy().drafts.num_drafts == 0


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_a_step_is_built_ahead_unless_there_is_a_guess(num_stages, monkeypatch):
    """After five to nine tokens there is one; while the fifth was computed, it was not known."""
    monkeypatch.setattr(Drafter, "guess", lambda self, ids, most: [1] * min(most, 2) if 5 <= len(ids) < 10 else [])
    engine = engine_with_drafts(num_stages=num_stages, runs_ahead=True)
    add_request(engine, "r", [6], PARAMS)
    finish(engine)
    records = list(engine.recorder.timeline.records)
    ahead = [int(now.starts[0]) for last, now in pairwise(records) if now.submitted < last.finished]
    drafted = [int(record.starts[0]) for record in records if any(record.num_drafts)]
    assert (ahead, drafted) == ([1, 2, 3, 4, *range(10, 30)], [5, 6, 7, 8])


def served(engine, monkeypatch):
    """A list that each step's requests, and drafts, are added to as it is built."""
    plans, schedule = [], engine.scheduler.schedule

    def noted(*args):
        plan = schedule(*args)
        if plan.scheduled:
            plans.append(({part.group.request.id for part in plan.scheduled}, plan.num_drafts))
        return plan

    monkeypatch.setattr(engine.scheduler, "schedule", noted)
    return plans


@pytest.mark.parametrize("num_stages", [2, 3])
def test_who_waits_for_tokens_to_guess_after_keeps_nobody_waiting(num_stages, monkeypatch):
    """Of two sequences, each with a stage's turn, one has a guess in every step. The other one is
    computed ahead where a stage would have nothing to do, not where the first one's next step would
    come later.
    """
    monkeypatch.setattr(Drafter, "guess", lambda self, ids, most: [1] * min(most, 2) if ids[0] == 6 else [])
    monkeypatch.setattr(Drafter, "judge", lambda *_: None)
    engine = engine_with_drafts(num_stages=num_stages, runs_ahead=True)
    for number in range(2):
        add_request(engine, str(number), [number + 6], PARAMS)
    plans = served(engine, monkeypatch)
    while len(plans) < 30:
        engine.step()
    engine.abort_request("0")
    engine.abort_request("1")
    assert all(len(names) == 1 for names, _ in plans[2:])
    assert [drafts > 0 for _, drafts in plans[4:]] == [names == {"0"} for names, _ in plans[4:]]
    shares = [sum(names == {name} for names, _ in plans[4:]) for name in "01"]
    assert shares == ([13, 13] if num_stages == 2 else [9, 17])
    steps = [step for step in engine.recorder.timeline.records if "1" in step.request_ids][2:]
    is_ahead = [now.submitted < last.finished for last, now in pairwise(steps)]
    assert is_ahead == [num_stages == 3] * len(is_ahead)


def test_those_who_come_while_others_wait_share_their_steps(wrong, monkeypatch):
    """Else a stage's turn would be in two parts, of which one is always in flight."""
    engine = engine_with_drafts(num_stages=2, runs_ahead=True)
    for number in range(4):
        add_request(engine, str(number), [number + 6] * 20, SamplingParams(max_tokens=200, ignore_eos=True))
        for _ in range(3):
            engine.step()
    while engine.scheduler.queues.cohorts.prompts or engine.stats().num_requests_waiting:
        engine.step()
    plans = served(engine, monkeypatch)
    while len(plans) < 20:
        engine.step()
    for (one, _), (other, _) in zip(plans[4::2], plans[5::2], strict=True):
        assert len(one) == len(other) == 2 and one | other == set("0123")


def test_prompts_do_not_delay_who_waits(wrong):
    """There is a step for each stage, and none of prompts alone in line behind them."""
    engine = engine_with_drafts(num_stages=2, runs_ahead=True)
    add_request(engine, "drafting", [6], SamplingParams(max_tokens=30, ignore_eos=True))
    while engine.stats().num_generation_tokens < 3:
        engine.step()
    add_request(engine, "newcomer", [7] * 400, SamplingParams(max_tokens=1))
    while engine.scheduler.queues.waiting or engine.scheduler.queues.cohorts.prompts:
        engine.step()
        assert len(engine._in_flight) <= 1  # the one that was waited for has gone


def test_the_last_tokens_are_not_guessed_beyond_max_tokens(wrong):
    engine = engine_with_drafts()
    add_request(engine, "r", [6], SamplingParams(max_tokens=5, ignore_eos=True))
    finish(engine)
    records = engine.recorder.timeline.records
    assert [sum(record.num_drafts) for record in records] == [0, 3, 2, 1, 0]


def test_what_became_of_drafts_is_told_of_their_request(monkeypatch):
    """The first of two is right."""
    alone = make_engine(Knobs())
    add_request(alone, "r", [6], SamplingParams(max_tokens=9, seed=1, ignore_eos=True))
    told = finish(alone)["r"].outputs[0].token_ids
    wrong = (told[4] + 1) % 37
    monkeypatch.setattr(Drafter, "guess", lambda self, ids, most: [told[3], wrong] if len(ids) == 4 else [])
    engine = engine_with_drafts()
    for name in ("r", "beside"):
        add_request(engine, name, [6 + (name != "r")], SamplingParams(max_tokens=9, seed=1, ignore_eos=True))
    assert finish(engine)["r"].outputs[0].token_ids == told
    why = engine.requests.why("r")
    assert (why.draft_tokens, why.accepted_tokens, why.accepted_tokens_per_pos) == (2, 1, [1, 0])


@pytest.mark.parametrize("is_drafting", [False, True])
def test_no_lane_is_preempted_for_drafts(wrong, is_drafting):
    """Of three blocks one is free, and the second lane needs it before the first one does."""
    overrides = {"max_num_seqs": 4, "max_model_len": 48, "watermark": 0.0, "enable_prefix_caching": False}
    overrides |= {"speculative_config": {"num_speculative_tokens": 8}} if is_drafting else {}
    engine = make_engine(Knobs(num_blocks=4, overrides=overrides))
    add_request(engine, "a", [6] * 13, SamplingParams(max_tokens=10, ignore_eos=True))
    add_request(engine, "b", [7] * 15, SamplingParams(max_tokens=3, ignore_eos=True))
    finish(engine)
    assert engine.scheduler.preemption.num_swaps + engine.scheduler.preemption.num_recomputes == 0


def test_drafts_are_no_cost_of_prompts(wrong):
    engine = engine_with_drafts()
    add_request(engine, "a", [6], PARAMS)
    before = engine.scheduler.preemption.costs.prefill_seconds_per_token
    finish(engine)
    assert engine.scheduler.preemption.costs.prefill_seconds_per_token == before


def test_a_key_is_charged_for_right_guesses(monkeypatch):
    """As for any of its tokens: drafts give nobody a larger share."""
    plain, drafting = engine_with_drafts(speculative_config=None), engine_with_drafts()
    known = answer_two_keys(plain)
    monkeypatch.setattr(Drafter, "guess", lambda self, ids, most: known[ids[0]][len(ids) :][:most])
    assert answer_two_keys(drafting) == known
    assert drafting.recorder.measures.copy().drafts.num_accepted > 20
    assert drafting.scheduler._shares._served == plain.scheduler._shares._served


def answer_two_keys(engine):
    """Each one's prompt and answer, by its first token."""
    for token_id, key in ((6, "a"), (7, "b")):
        params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
        add_request(engine, key, [token_id], params, share=Share(key))
    told = finish(engine)
    return {token_id: [token_id, *told[key].outputs[0].token_ids] for token_id, key in ((6, "a"), (7, "b"))}


def test_drafts_of_a_request_that_has_gone_are_neither_right_nor_wrong(monkeypatch):
    """All guesses are right; of one request some are in flight when it is aborted."""
    known = answer_two_keys(engine_with_drafts(speculative_config=None))
    monkeypatch.setattr(Drafter, "guess", lambda self, ids, most: known[ids[0]][len(ids) :][: min(most, 2)])
    engine, num_received, num_lost = engine_with_drafts(num_stages=2), 0, 0
    for token_id, key in ((6, "a"), (7, "b")):
        add_request(engine, key, [token_id], SamplingParams(max_tokens=20, seed=1, ignore_eos=True))
    while engine.has_unfinished_requests():
        for output in engine.step():
            num_received += sum(len(choice.token_ids) for choice in output.outputs)
        in_flight = [part for plan, _ in engine._in_flight for part in plan.others if part.group.request.id == "a"]
        if in_flight and in_flight[0].drafts and not num_lost:
            num_lost = len(in_flight[0].drafts)
            engine.abort_request("a")
    drafts = engine.recorder.measures.copy().drafts
    assert num_lost > 0 and drafts.num_accepted == drafts.num_tokens > 10
    assert engine.stats().num_generation_tokens == engine.recorder.measures.copy().num_tokens == num_received
    assert engine.stats().num_discarded_rows == 1 + num_lost


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize(
    ("promise", "num_seqs", "is_checked"), [(1, 1, True), (3, 4, False), (4, 4, True), (4, 5, False)]
)
def test_a_guess_is_checked_if_it_may_bring_enough_for_all(promise, num_seqs, is_checked, runs_ahead, monkeypatch):
    """Only the first sequence has one; without drafts, all run ahead."""
    monkeypatch.setattr(Drafter, "guess", lambda self, ids, most: [1] * min(most, 2) if ids[0] == 6 else [])
    monkeypatch.setattr(Drafter, "promise", lambda self, ids: promise if self.guess(ids, 2) else 0)
    engine = engine_with_drafts(runs_ahead=runs_ahead)
    for number in range(num_seqs):
        add_request(engine, str(number), [number + 6], SamplingParams(max_tokens=9, ignore_eos=True))
    finish(engine)
    assert (engine.recorder.measures.copy().drafts.num_drafts > 0) is is_checked
    records = list(engine.recorder.timeline.records)
    is_ahead = any(now.submitted < last.finished for last, now in pairwise(records))
    assert is_ahead is (runs_ahead and not is_checked)


def decoding_plans(engine, prompts, monkeypatch):
    """The steps without prompts that answer them with ten tokens each."""
    plans, schedule = [], engine.scheduler.schedule
    monkeypatch.setattr(engine.scheduler, "schedule", lambda *args: plans.append(schedule(*args)) or plans[-1])
    for number, prompt in enumerate(prompts):
        add_request(engine, str(number), prompt, SamplingParams(max_tokens=10, ignore_eos=True))
    finish(engine)
    return [plan for plan in plans if plan.scheduled and not plan.num_prompt_tokens]


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize(("promise", "is_plain"), [(2, True), (3, False)])
def test_rows_are_plain_where_a_guess_does_not_pay(promise, is_plain, runs_ahead, monkeypatch):
    """Of three sequences one has a guess in every step."""
    monkeypatch.setattr(Drafter, "guess", lambda self, ids, most: [1] * min(most, 2) if ids[0] == 6 else [])
    monkeypatch.setattr(Drafter, "promise", lambda self, ids: promise if self.guess(ids, 2) else 0)
    monkeypatch.setattr(Drafter, "judge", lambda *_: None)
    engine = engine_with_drafts(runs_ahead=runs_ahead)
    plans = decoding_plans(engine, [[6], [7], [8]], monkeypatch)[2:-1]
    assert plans and [not plan.others for plan in plans] == [is_plain] * len(plans)


def test_rows_are_plain_while_there_can_be_no_guess(wrong, monkeypatch):
    """Beside one of whom a guess is checked."""
    monkeypatch.setattr(Drafter, "rests", lambda self, num_tokens: num_tokens > 20)
    engine = engine_with_drafts(runs_ahead=True)
    plans = decoding_plans(engine, [[6], [7] * 21], monkeypatch)
    both = [plan for plan in plans if len(plan.scheduled) == 2][1:-1]
    assert both
    assert [[part.group.request.id for part in plan.others] for plan in both] == [["0"]] * len(both)
