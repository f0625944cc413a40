"""Steps go ahead of their masks, which follow once the tokens before them are known."""

from collections import deque
from typing import Any

import pytest

from engine.batch.masks import Stuck, awaits_masks, is_known, step_masks
from engine.core.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.scheduling.plan import SchedulerOutputs
from engine.scheduling.sequence import Sequence
from engine.step import StepMasks
from tests.doubles.hash_grammar import HashMatcher
from tests.engine.support.arrivals import add_request
from tests.engine.support.workloads import EOS, VOCAB, Knobs, make_engine

NUM_WORDS = 2  # of a mask
PARAMS = SamplingParams(max_tokens=9, temperature=0.0)


@pytest.fixture
def engine() -> LLMEngine:
    return make_engine(Knobs(depth=2, runs_ahead=True))


def add(engine: LLMEngine, name: str, matcher: HashMatcher | None, **wishes: Any) -> None:
    params = SamplingParams(**({"max_tokens": 9, "temperature": 0.0} | wishes))
    add_request(engine, name, [3] * 20, params, matcher=matcher)


def matcher() -> HashMatcher:
    return HashMatcher(7, VOCAB)


def only(plan: SchedulerOutputs) -> Sequence:
    return plan.scheduled[0].seq


def made(plan: SchedulerOutputs, epoch: int = 0) -> StepMasks:
    """Of rows of which none is stuck."""
    stuck: list[Stuck] = []
    masks = step_masks(plan, epoch, stuck)
    assert stuck == []
    return masks


def allowed_by(masks: StepMasks, row: int) -> set[int]:
    words = masks.mask_words[masks.mask_starts[row] : masks.mask_starts[row + 1]].tolist()
    return {token for token in range(VOCAB) if words[token // 32] >> token % 32 & 1}


def test_rows_without_a_grammar_have_no_words(engine: LLMEngine) -> None:
    add(engine, "plain", None)
    add(engine, "held", matcher())
    plan = engine.scheduler.schedule()
    assert awaits_masks(plan) and is_known(plan)
    masks = made(plan, epoch=3)
    assert (masks.epoch, masks.step) == (3, plan.step)
    assert masks.mask_starts.tolist() == [0, 0, NUM_WORDS]
    assert allowed_by(masks, 1) == matcher().allowed


def test_a_step_of_plain_rows_awaits_nothing(engine: LLMEngine) -> None:
    add(engine, "plain", None)
    assert not awaits_masks(engine.scheduler.schedule())


def test_the_chunks_of_a_prompt_await_none_but_the_last() -> None:
    engine = make_engine(Knobs(depth=2, runs_ahead=True, overrides={"max_num_batched_tokens": 16, "max_num_seqs": 8}))
    add(engine, "held", matcher(), prompt_logprobs=1)
    first, second = engine.scheduler.schedule(), engine.scheduler.schedule()
    assert (awaits_masks(first), awaits_masks(second)) == (False, True)
    masks = made(second)  # rows of prompt logprobs come before the sampled one
    assert masks.mask_starts.tolist() == [0] * (second.scheduled[0].num_prompt_rows + 1) + [NUM_WORDS]


def test_the_next_step_is_built_at_once_and_its_masks_when_the_token_is_there(engine: LLMEngine) -> None:
    add(engine, "held", matcher())
    engine.scheduler.schedule()
    ahead = engine.scheduler.schedule()
    assert awaits_masks(ahead) and not is_known(ahead)
    token = min(matcher().allowed)
    only(ahead).matcher.take(token)  # type: ignore[union-attr]
    only(ahead).token_ids.append(token)
    assert is_known(ahead)
    then = matcher()
    then.take(token)
    assert allowed_by(made(ahead), 0) == then.allowed


def test_a_row_that_will_be_discarded_has_no_mask_and_is_not_waited_for(engine: LLMEngine) -> None:
    add(engine, "held", matcher())
    engine.scheduler.schedule()
    ahead = engine.scheduler.schedule()
    engine.abort_request("held")
    assert is_known(ahead)
    assert made(ahead).mask_words.tolist() == []


def test_ends_that_are_not_wanted_yet_are_masked(engine: LLMEngine) -> None:
    ending = next(found for state in range(100) if EOS in (found := HashMatcher(state, VOCAB)).allowed)
    add(engine, "early", ending.copy(), min_tokens=1)
    add(engine, "any", ending.copy())
    masks = made(engine.scheduler.schedule())
    assert [EOS in allowed_by(masks, row) for row in (0, 1)] == [False, True]


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_a_request_with_a_grammar_takes_as_many_steps_as_one_without(runs_ahead: bool) -> None:
    num_steps = []
    for of in (None, HashMatcher(7, VOCAB)):
        engine = make_engine(Knobs(depth=2, runs_ahead=runs_ahead))
        add(engine, "r", of, ignore_eos=True)
        answers = deque[Any]()
        while engine.has_unfinished_requests():
            answers.extend(engine.step())
        assert sum(len(choice.token_ids) for answer in answers for choice in answer.outputs) == 9
        num_steps.append(engine.executor.num_steps)  # type: ignore[attr-defined]
    assert num_steps[0] == num_steps[1]
