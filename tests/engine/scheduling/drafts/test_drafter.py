"""What follows the newest tokens, by what followed them before."""

import copy
import random
from itertools import takewhile

import pytest

from engine.config import SpeculativeConfig
from engine.scheduling.drafts.drafter import Drafter

A, B, C, D, E, F = range(1, 7)


def drafter(most=4, longest=3, shortest=2, *, is_new=False):
    """New, or one whose last guess was right."""
    settings = {"num_speculative_tokens": most, "prompt_lookup_max": longest, "prompt_lookup_min": shortest}
    one = Drafter(SpeculativeConfig(**settings))
    if not is_new:
        one.judge(0, num_guessed=most, num_right=most)
    return one


@pytest.mark.parametrize(
    ("token_ids", "guessed"),
    [
        ([A, B, C, D, E, F, A, B], [C, D, E, F]),
        ([A, B, C, F, A, B, D, F, A, B], [D, F, A, B]),  # of two times, the last
        ([F, A, B, C, E, A, B, D, F, A, B], [C, E, A, B]),  # but rather that with more in common
        ([A, B, C, A, B], [C, A, B, C]),  # and what has been guessed is repeated
        ([A, A, A], [A, A, A, A]),
        ([A, B, C, D, B], []),  # one token in common is too little
        ([A, B], []),
        ([A], []),
        ([], []),
    ],
)
def test_what_followed_the_last_time_is_guessed(token_ids, guessed):
    assert drafter().guess(token_ids, 4) == guessed
    assert drafter().guess(token_ids, 2) == guessed[:2]
    assert drafter().guess(token_ids, 0) == drafter().guess(token_ids, -1) == []


def test_one_token_in_common_is_enough_if_it_is_told_to_be():
    assert drafter(shortest=1).guess([A, B, C, D, B], 2) == [C, D]
    assert drafter(shortest=1, longest=1).guess([F, A, B, C, A, E, F, A], 1) == [E]


@pytest.mark.parametrize("edit", [[], [F], [F, F]])
def test_after_an_edit_copying_goes_on_beside_where_it_was(edit):
    prompt = [A, B, C, 9, A, B, D, 8, A, B, E, 7]
    one = drafter(longest=2)
    assert one.guess([*prompt, C, 9], 4) == [A, B, D, 8]
    edited = [*prompt, C, 9, *edit, A, B]
    assert one.guess(edited, 2) == [D, 8]
    assert drafter(longest=2).guess(edited, 2) == [E, 7]  # it has copied nothing: the last place


def test_tokens_come_one_by_one_or_many_at_once():
    token_ids, growing = [], drafter()
    for token_id in [A, B, C, D, E, F] * 30:
        token_ids.append(token_id)
        assert growing.guess(token_ids, 4) == drafter().guess(token_ids, 4)
    assert growing.guess(token_ids, 3) == [A, B, C]


def test_the_same_tokens_are_searched_once(monkeypatch):
    searched, find = [], Drafter._find
    monkeypatch.setattr(Drafter, "_find", lambda self, ids: searched.append(len(ids)) or find(self, ids))
    token_ids, one = [A, B, C, D, E, F, A, B], drafter()
    assert one.promise(token_ids) == 8 and one.guess(token_ids, 4) == one.guess(token_ids, 4) == [C, D, E, F]
    assert one.guess([*token_ids, C], 2) == [D, E] and one.guess([*token_ids, C, B], 2) == []
    assert one.guess([*token_ids, C, B], 2) == [] and searched == [8, 9, 10]


def least_common(one):
    """How many tokens have to recur before it guesses."""
    num_guesses = []
    for count in range(1, 9):
        text = [*range(100, 100 + count)]
        num_guesses.append(bool(copy.deepcopy(one).guess([*text, *range(200, 300), *text], 1)))
    return num_guesses.index(True) + 1


def test_more_tokens_have_to_recur_before_the_first_guess_and_after_wrong_ones():
    new, settled = drafter(longest=8, is_new=True), drafter(longest=8)
    assert (least_common(new), least_common(settled)) == (4, 2)
    seen = []
    for num_guessed, num_right in ((4, 0), (4, 1), (4, 0), (4, 0), (4, 2), (4, 0), (1, 1)):
        settled.judge(0, num_guessed, num_right)
        seen.append(least_common(settled))
    assert seen == [4, 4, 8, 8, 2, 4, 2]


def test_a_text_is_searched_no_sooner_than_enough_tokens_can_recur(monkeypatch):
    """It needs eight, and of ten different ones none has recurred after eight."""
    one, searched, find = drafter(longest=8, is_new=True), [], Drafter._find
    monkeypatch.setattr(Drafter, "_find", lambda self, ids: searched.append(len(ids)) or find(self, ids))
    one.judge(0, num_guessed=4, num_right=0)
    text = [A, B, C, D, E, F, 7, 8, 9, 10]
    told = [*text, *text, *text]
    guesses = [bool(one.guess(told[:count], 4)) for count in range(8, 24)]
    assert searched[:3] == [8, 13, 18]
    assert [count for count, is_one in enumerate(guesses, start=8) if is_one] == [*range(18, 24)]


def test_guesses_are_as_long_as_they_are_good():
    token_ids, one = [A, B, C, D, E, F, A, B], drafter(most=4)
    one.judge(8, num_guessed=4, num_right=1)
    assert one.guess(token_ids, 4) == [C, D]
    one.judge(9, num_guessed=2, num_right=2)
    assert one.guess(token_ids, 9) == [C, D, E, F]


def test_a_sequence_whose_guesses_fail_is_left_in_peace_for_longer_and_longer():
    token_ids, one = [A, B, C, D, E, F, A, B], drafter(longest=2)
    pauses, num_tokens = [], 8
    for _ in range(8):
        one.judge(num_tokens, num_guessed=1, num_right=0)
        pauses.append(0)
        while not one.guess([*token_ids] + [A, B] * ((num_tokens - 8 + pauses[-1]) // 2), 1):
            pauses[-1] += 2
    assert pauses == [0, 2, 4, 8, 16, 32, 64, 64]
    num_tokens += 64
    one.judge(num_tokens, num_guessed=1, num_right=1)
    one.judge(num_tokens, num_guessed=1, num_right=0)
    assert one.guess([A, B] * (num_tokens // 2), 1) == [A]


class Everywhere(Drafter):
    """One that looks at every place."""

    def _find(self, token_ids):
        count, longest = len(token_ids), self._settings.prompt_lookup_max
        aim = count if self._shift is None else count + self._shift
        common = [num_common(token_ids, place) for place in range(count)]
        best = [(min(common[place], longest), -abs(place - aim), -place) for place in range(count) if common[place]]
        if not best:
            return 0, None
        place = -max(best)[2]
        return min(common[place], 2 * longest), place


def num_common(token_ids, place):
    num = 0
    while num < place and token_ids[place - 1 - num] == token_ids[-1 - num]:
        num += 1
    return num


@pytest.mark.parametrize("seed", range(40))
def test_the_guess_is_that_of_looking_everywhere(seed):
    """Texts that copy themselves, with edits; guesses are judged, which changes what comes next."""
    rng = random.Random(seed)
    shortest = rng.choice((1, 2, 2, 2, 3, 5))
    settings = SpeculativeConfig(prompt_lookup_min=shortest, prompt_lookup_max=rng.choice((shortest, 8, 8, 12)))
    one, other, num_guesses = Drafter(settings), Everywhere(settings), 0
    text = [rng.randrange(rng.choice((2, 4, 30, 3000))) for _ in range(rng.choice((0, 1, 9, 300)))]
    while len(text) < 700:
        if len(text) > 9 and rng.random() < 0.3:
            start = rng.randrange(len(text) - 3)
            coming = text[start : start + rng.randrange(3, 40)]
        else:
            coming = [rng.randrange(rng.choice((2, 9, 3000))) for _ in range(rng.choice((1, 2, 9)))]
        while coming:
            most = rng.choice((1, 4, 8, 8))
            if rng.random() < 0.3:
                assert one.promise(text) == other.promise(text)
            guessed = one.guess(text, most)
            assert guessed == other.guess(text, most)
            pairs = zip(guessed, coming, strict=False)
            num_right = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            text, coming = text + coming[: num_right + 1], coming[num_right + 1 :]
            if guessed:
                num_guesses += 1
                one.judge(len(text), len(guessed), num_right)
                other.judge(len(text), len(guessed), num_right)
    assert num_guesses > 10
