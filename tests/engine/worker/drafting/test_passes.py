"""The passes of a draft model: which tokens, where, drawn how."""

from dataclasses import replace

import numpy as np

from engine.sampling_columns import SamplingColumns
from engine.worker.drafting.passes import first_lines, make_pass, next_lines, with_known_ids
from tests.engine.worker.steps import Part, floats, ints, make_step


def a_step():
    """A prompt's middle, a prompt's end, and a sequence that checks drafts: 31 and 32 after 30."""
    parts = [
        Part([1, 2, 3], 0, [1], num_samples=0),
        Part([11, 12], 0, [2], num_samples=1),
        Part([*range(14, 33)], 16, [3, 4], num_samples=1),
    ]
    step = make_step(7, parts)
    columns = SamplingColumns.of_plain_rows(
        4,
        temperature=floats(1, 2, 2, 2),
        seed=np.array([5, 6, 6, 6], np.uint64),
        position=ints(2, 17, 18, 19),
        logprob_counts=ints(0, 3, 3, 3),
        history_num_prompt=ints(0, 9, 9, 9),
        bias_starts=ints(0, 0, 1, 2, 4),
        bias_ids=ints(70, 71, 72, 73),
        bias_values=floats(1, 2, 3, 4),
        has_target=np.array([False, False, False, True]),
        target_ids=ints(0, 0, 0, 5),
    )
    return replace(
        step,
        sampled_rows=ints(4, 5, 6, 7),
        sampling=columns,
        drafting=np.array([[0, 0, 3, 0, 0, 0], [1, 0, 2, 0, 1, 1], [2, 15, 2, 1, 3, 3]], np.int32),
        draft_ids=ints(1, 2, 3, 11, 12, 29, 30),
    )


def test_the_first_computes_what_is_lacking_up_to_the_token_after_right_drafts():
    lines = first_lines(a_step(), [40, 31, 50, 60])
    assert [line.token_ids for line in lines] == [[1, 2, 3], [11, 12, 40], [29, 30, 31, 50]]
    first = make_pass(a_step(), lines, 3)
    assert first.positions.tolist() == [0, 1, 2, 0, 1, 2, 15, 16, 17, 18]
    assert first.slot_mapping.tolist() == [16, 17, 18, 32, 33, 34, 63, 64, 65, 66]
    assert first.context_lens.tolist() == [3, 3, 19]
    assert first.sampled_rows.tolist() == [5, 9]
    assert first.sampling.position.tolist() == [3, 19]
    assert (first.step, len(first.carried_rows)) == (3, 0)


def test_all_drafts_may_be_right_or_none():
    assert [line.token_ids for line in first_lines(a_step(), [40, 31, 32, 60])][2] == [29, 30, 31, 32, 60]
    assert [line.token_ids for line in first_lines(a_step(), [40, 99, 32, 60])][2] == [29, 30, 99]


def test_a_guess_is_drawn_as_its_token_will_be():
    columns = make_pass(a_step(), first_lines(a_step(), [40, 31, 50, 60]), 0).sampling
    assert (columns.temperature.tolist(), columns.seed.tolist()) == ([1, 2], [5, 6])
    assert columns.history_num_prompt.tolist() == [0, 9]
    assert columns.bias_starts.tolist() == [0, 0, 1]
    assert (columns.bias_ids.tolist(), columns.bias_values.tolist()) == ([71], [2])
    assert columns.logprob_counts.tolist() == [0, 0]
    assert len(columns.has_target) == len(columns.target_ids) == 0


def test_further_ones_carry_the_guess_of_the_one_before():
    step = a_step()
    lines = first_lines(step, [40, 31, 50, 60])
    after = next_lines(lines)
    second = make_pass(step, after, 4, lines)
    assert (second.positions.tolist(), second.sampling.position.tolist()) == ([19], [20])
    assert (second.carried_steps.tolist(), second.carried_rows.tolist()) == ([3], [[0, 1]])
    third = make_pass(step, next_lines(after), 5, after)
    assert (third.positions.tolist(), third.carried_rows.tolist()) == ([20], [[0, 0]])
    assert next_lines(next_lines(after)) == []


def test_ids_that_the_draft_model_lacks_are_its_last():
    first = make_pass(a_step(), first_lines(a_step(), [40, 31, 50, 60]), 0)
    assert with_known_ids(first, 45).input_ids.tolist() == [1, 2, 3, 11, 12, 40, 29, 30, 31, 44]
    assert first.input_ids.tolist() == [1, 2, 3, 11, 12, 40, 29, 30, 31, 50], "what penalties count"
