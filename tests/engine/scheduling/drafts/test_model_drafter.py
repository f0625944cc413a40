"""What a draft model is asked for, and when its cache has what it should."""

import pytest

from engine.sampling_params import SamplingParams
from engine.scheduling.drafts.drafting import MAX_BEHIND, MAX_ROWS
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import DEMO, Knobs, finish, make_engine


def drafting_engine(num_tokens=4, *, runs_ahead=False, **overrides):
    speculation = {"model": DEMO, "num_speculative_tokens": num_tokens}
    knobs = {"speculative_config": speculation, "max_num_seqs": 64} | overrides
    engine = make_engine(Knobs(num_blocks=1000, depth=1 + runs_ahead, runs_ahead=runs_ahead, overrides=knobs))
    engine.asked = []
    submit = engine.executor.submit
    engine.executor.submit = lambda request: (engine.asked.append(request), submit(request))[1]
    return engine


def ask(engine, prompt, max_tokens=20, **options):
    name = str(len(engine.requests))
    add_request(engine, name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, **options))


def drafts_of(engine):
    return engine.recorder.measures.copy().drafts


def parts(engine):
    """By step: (first position, known tokens, rows sampled, guesses wanted) of each sequence."""
    return [
        [(start, known, rows, wanted) for _, start, known, _, rows, wanted in step.drafting.tolist()]
        for step in engine.asked
    ]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_right_guesses_are_taken_four_at_a_time(runs_ahead):
    engine = drafting_engine(runs_ahead=runs_ahead)
    ask(engine, [6, 7, 8], 21)
    finish(engine)
    drafts = drafts_of(engine)
    assert (drafts.num_tokens, drafts.num_accepted, drafts.accepted_at) == (16, 16, [4, 4, 4, 4])
    assert parts(engine) == [[(0, 3, 1, 4)], [(4, 0, 5, 4)], [(9, 0, 5, 4)], [(14, 0, 5, 4)], []]


def test_no_more_is_guessed_than_the_answer_may_have():
    engine = drafting_engine()
    ask(engine, [6], 4)
    finish(engine)
    assert parts(engine) == [[(0, 1, 1, 2)], []]
    assert drafts_of(engine).accepted_at == [1, 1]


def test_chunks_of_a_prompt_are_computed_with_it_and_found_again():
    engine = drafting_engine(long_prefill_token_threshold=20)
    ask(engine, [6] * 50, 1)
    finish(engine)
    ask(engine, [6] * 50, 3)
    finish(engine)
    assert parts(engine) == [[(0, 20, 0, 0)], [(20, 20, 0, 0)], [(40, 10, 1, 0)], [(48, 2, 1, 1)], []]
    assert drafts_of(engine).num_accepted == 1


@pytest.mark.parametrize("options", [{"beam_width": 2, "temperature": 0.0}, {"bad_words": ["x"]}])
def test_prompts_of_those_that_have_none_are_computed_for_others(options):
    engine = drafting_engine()
    ask(engine, [6] * 40, 3, **options)
    finish(engine)
    assert parts(engine)[0] == [(0, 40, 1, 0)] and drafts_of(engine).num_tokens == 0
    ask(engine, [6] * 40, 9)
    finish(engine)
    assert drafts_of(engine).num_accepted == drafts_of(engine).num_tokens > 4


@pytest.mark.parametrize("num_seqs", [4, 16, MAX_ROWS - 1, MAX_ROWS, 40])
def test_many_sequences_share_a_steps_rows(num_seqs):
    engine = drafting_engine()
    for number in range(num_seqs):
        ask(engine, [number % 30 + 6], 6)
    finish(engine)
    most = max((wanted for step in parts(engine) if len(step) == num_seqs for *_, wanted in step), default=0)
    assert most == min(4, (MAX_ROWS - num_seqs) // num_seqs if num_seqs < MAX_ROWS else 0)


class Counted(list):
    """Of lanes, with the number of walks through them."""

    num_walks = 0

    def __iter__(self):
        self.num_walks += 1
        return super().__iter__()


@pytest.mark.parametrize("speculation", [{"model": DEMO}, {}])
def test_walks_through_the_running_lanes_are_as_many_for_few_as_for_many(speculation):
    walks = []
    for num_seqs in (2, MAX_ROWS - 1):
        engine = drafting_engine(speculative_config={"num_speculative_tokens": 4, **speculation})
        for number in range(num_seqs):
            ask(engine, [number % 30 + 6], 6)
        running = engine.scheduler.queues.running = Counted()
        engine.scheduler.schedule()
        assert len(running) == num_seqs
        walks.append(running.num_walks)
    assert walks[0] == walks[1]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_wrong_guesses_pause_and_what_was_left_out_is_computed_then(runs_ahead):
    engine = drafting_engine(runs_ahead=runs_ahead)
    propose = engine.executor.draft.propose
    engine.executor.draft.propose = lambda *step: (propose(*step) + 1) % 37
    ask(engine, [6] * 3, 200)
    while engine.stats().num_generation_tokens < 180:
        engine.step()
    assert drafts_of(engine).num_accepted == 0 and drafts_of(engine).num_tokens <= 20
    asked = [step[0] for step in parts(engine) if step]
    assert [known for _, known, _, _ in asked if known] == [3, 3, 5, 9, 17, 33, 65]
    engine.executor.draft.propose = propose
    finish(engine)


def test_what_was_left_out_for_long_is_computed_in_parts():
    engine = drafting_engine(max_num_seqs=80)
    ask(engine, [6] * 2, 400)
    for number in range(40):
        ask(engine, [number % 30 + 6], 350)
    finish(engine)
    behind = [step[0] for step in parts(engine) if len(step) == 1 and step[0][1] > 5]
    assert behind[0][1] == MAX_BEHIND < sum(known for _, known, _, _ in behind)
    assert drafts_of(engine).num_accepted == drafts_of(engine).num_tokens > 0


def test_the_next_turn_computes_what_was_left_out_of_the_answer():
    """40 others run beside the first turn, so that none of its answer is guessed; its blocks are
    found nevertheless. Once filled they are whole.
    """
    engine = drafting_engine()
    for number in range(40):
        ask(engine, [number % 30 + 6], 60)
    ask(engine, [6] * 20, 50)
    ids = list(engine.scheduler.queues.waiting)[-1].seqs[0].token_ids
    finish(engine)
    assert drafts_of(engine).num_tokens == 0
    for num_turns, first in ((1, 16), (2, 64)):
        engine.asked.clear()
        ids = [*ids, 7, 8, 9]
        ask(engine, ids, 9)
        answer = list(engine.scheduler.queues.waiting)[-1].seqs[0]
        finish(engine)
        assert parts(engine)[0][0][0] == first and parts(engine)[0][0][3] == 4
        assert drafts_of(engine).num_accepted == drafts_of(engine).num_tokens > 4 * num_turns
        ids = answer.token_ids


def test_what_many_sequences_lack_is_computed_in_parts():
    """A step computes no more than MAX_BEHIND of all of them, beside its own tokens."""
    engine = drafting_engine(max_num_seqs=80)
    for number in range(40):
        ask(engine, [number % 30 + 6] * 2, 140)
    answers = [lane.seqs[0] for lane in engine.scheduler.queues.waiting]
    finish(engine)
    engine.asked.clear()
    for answer in answers[:6]:
        ask(engine, [*answer.token_ids, 7], 20)
    finish(engine)
    for step, known in zip(engine.asked, parts(engine), strict=True):
        assert sum(num_known for _, num_known, *_ in known) <= MAX_BEHIND + len(step.input_ids)
    assert parts(engine)[0][0][0] == 0
    assert drafts_of(engine).num_accepted == drafts_of(engine).num_tokens > 0


def test_no_lane_is_preempted_for_guesses():
    engine = make_engine(
        Knobs(
            num_blocks=4,
            overrides={
                "max_num_seqs": 4,
                "max_model_len": 48,
                "watermark": 0.0,
                "enable_prefix_caching": False,
                "speculative_config": {"model": DEMO, "num_speculative_tokens": 8},
            },
        )
    )
    ask(engine, [6] * 13, 10)
    ask(engine, [7] * 15, 3)
    finish(engine)
    assert engine.scheduler.preemption.num_swaps + engine.scheduler.preemption.num_recomputes == 0
