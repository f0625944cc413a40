"""A choice's tokens so far decide whether the next one ends its reasoning."""

import random

import pytest

from engine.scheduling.thinking import Thinking, ThinkingBudget

BEGIN, END, BLANK, WORD = 1, 2, 3, 4


def forced_at(prompt: list[int], wished: list[int], num_tokens: int) -> list[int]:
    """The answer of a model that wishes for these tokens."""
    state = ThinkingBudget(num_tokens, BEGIN, END, lambda token_id: token_id == BLANK).state(prompt)
    answer = []
    for wish in wished:
        forced = state.forced_token
        answer.append(wish if forced is None else forced)
        state.take(answer[-1])
        state = state.copy()
    return answer


@pytest.mark.parametrize(
    ("prompt", "wished", "num_tokens", "answer"),
    [
        ([WORD], [BEGIN, WORD, WORD, WORD, WORD], 2, [BEGIN, WORD, WORD, END, WORD]),
        ([WORD], [BEGIN, WORD, WORD], 0, [BEGIN, END, WORD]),
        ([WORD], [BLANK, BLANK, BEGIN, BLANK, WORD], 1, [BLANK, BLANK, BEGIN, BLANK, END]),
        ([WORD], [BEGIN, WORD, END, WORD, WORD, WORD], 2, [BEGIN, WORD, END, WORD, WORD, WORD]),
        ([WORD], [BEGIN, WORD, WORD, END, WORD], 2, [BEGIN, WORD, WORD, END, WORD]),
        ([WORD], [WORD, BEGIN, WORD, WORD], 0, [WORD, BEGIN, WORD, WORD]),  # not what it begins with
        ([WORD], [BEGIN, END, BEGIN, WORD], 0, [BEGIN, END, BEGIN, WORD]),
        ([WORD, BEGIN, BLANK], [WORD, WORD, WORD], 1, [WORD, END, WORD]),
        ([WORD, BEGIN, BLANK], [WORD, WORD], 0, [END, WORD]),
        ([BEGIN, BLANK, END], [WORD, WORD], 0, [WORD, WORD]),
        ([BEGIN, BLANK, END], [BLANK, BEGIN, WORD], 0, [BLANK, BEGIN, END]),
        ([BEGIN, WORD, WORD, WORD], [WORD, WORD], 0, [WORD, WORD]),  # it has said something since
    ],
)
def test_what_is_forced(prompt: list[int], wished: list[int], num_tokens: int, answer: list[int]) -> None:
    assert forced_at(prompt, wished, num_tokens) == answer


def test_what_is_free_whatever_comes_before_it() -> None:
    """By trying all that may come."""
    rng = random.Random(0)
    num_free = 0
    for _ in range(300):
        budget = ThinkingBudget(rng.randrange(5), BEGIN, END, lambda token_id: token_id == BLANK)
        state = budget.state([WORD, rng.choice((BEGIN, WORD))])
        for _ in range(rng.randrange(5)):
            forced = state.forced_token
            state.take(rng.choice((BEGIN, END, BLANK, WORD)) if forced is None else forced)
        states = [state]
        for num_unknown in range(4):
            is_free = all(each.forced_token is None for each in states)
            assert is_free or not state.is_free_after(num_unknown)
            num_free += state.is_free_after(num_unknown)
            states = [then for each in states for then in successors(each)]
    assert 300 < num_free < 1200


def successors(state: Thinking) -> list[Thinking]:
    forced = state.forced_token
    made = []
    for token_id in (BEGIN, END, BLANK, WORD) if forced is None else (forced,):
        made.append(state.copy())
        made[-1].take(token_id)
    return made
