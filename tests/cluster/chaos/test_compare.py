"""A comparer that finds nothing is worth nothing: each kind of damage is found, and told from the
others.
"""

import pytest

from cluster.chaos.compare import problems
from cluster.chaos.transcript import Choice, Transcript

TEXT = "one two three four three four five"


def transcript(text: str = TEXT, finish_reason: str | None = "length", **changes: object) -> Transcript:
    """Told in words, as tokens with logprobs are; whole unless said otherwise."""
    choice = Choice(text, [f"{word} {position}" for position, word in enumerate(text.split())], finish_reason)
    usage = None if finish_reason is None else (5, len(choice.tokens))
    whole = Transcript({0: choice}, usage)
    for name, value in changes.items():
        setattr(choice if hasattr(choice, name) else whole, name, value)
    return whole


def tokens(*words: str) -> list[str]:
    return list(words)


def test_the_same_is_no_problem() -> None:
    assert problems(transcript(), transcript()) == set()


@pytest.mark.parametrize(
    "got",
    [
        Transcript(),
        transcript("one two", None),
        transcript(TEXT, None),
        transcript(usage=None),
        Transcript({0: Choice(TEXT, [], "length"), 1: Choice()}, (5, 7)),
    ],
)
def test_what_did_not_end_is_lost(got: Transcript) -> None:
    assert "lost" in problems(got, transcript())


def test_a_piece_told_twice_is_duplicated() -> None:
    right = transcript(tokens=tokens("a", "b", "c", "d", "e"))
    twice = transcript(tokens=tokens("a", "b", "c", "b", "c", "d", "e"))
    assert problems(twice, right) == {"duplicated"}
    twice_and_lost = transcript(finish_reason=None, tokens=tokens("a", "b", "c", "b", "c"))
    assert problems(twice_and_lost, right) == {"duplicated", "lost"}
    last_twice = transcript(tokens=tokens("a", "b", "c", "d", "e", "e"))
    assert problems(last_twice, right) == {"duplicated"}


def test_text_is_compared_where_no_tokens_are_known() -> None:
    right = transcript("abcdefgh", tokens=[])
    assert problems(transcript("abcdcdefgh", tokens=[]), right) == {"duplicated"}
    assert problems(transcript("abcdXfgh", tokens=[]), right) == {"changed"}


@pytest.mark.parametrize(
    "got",
    [
        transcript(tokens=tokens("a", "x", "c", "d", "e")),
        transcript(tokens=tokens("a", "b", "d", "e")),
        transcript(tokens=tokens("a", "b", "c", "d", "e"), finish_reason="stop"),
        transcript(tokens=tokens("a", "b", "c", "d", "e"), text=TEXT + " "),
        transcript(tokens=tokens("a", "b", "c", "d", "e"), usage=(5, 8)),
        transcript(tokens=tokens("a", "b", "c", "d", "e"), stop_reason="e"),
        transcript(tokens=tokens("a", "b", "c", "d", "e"), choices={1: Choice(TEXT, [], "length")}),
    ],
)
def test_any_other_difference_is_a_change(got: Transcript) -> None:
    assert problems(got, transcript(tokens=tokens("a", "b", "c", "d", "e"))) == {"changed"}


def test_a_bit_of_a_logprob_is_a_change() -> None:
    def told(logprob: float) -> Transcript:
        events = Transcript()
        columns = {"tokens": ["a"], "token_logprobs": [logprob], "top_logprobs": [{"a": logprob, "b": -9.0}]}
        events.take({"choices": [{"index": 0, "text": "a", "logprobs": columns, "finish_reason": "length"}]})
        events.take({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        return events

    assert problems(told(-0.5), told(-0.5)) == set()
    assert problems(told(-0.5), told(-0.5000000000000001)) == {"changed"}
