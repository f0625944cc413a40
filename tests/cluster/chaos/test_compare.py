"""A comparer that finds nothing is worth nothing: each kind of damage is found, and told from the
others.
"""

import json

import pytest

from cluster.chaos.client import Stream
from cluster.chaos.compare import problems
from cluster.chaos.report import Fault, Report, percentile, resume_times
from cluster.chaos.requests import KINDS, ChaosRequest, make_requests
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


def test_chunks_of_chat_are_joined() -> None:
    events = Transcript()
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.5}]}
    assert events.take({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assert events.take({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}}]})
    assert events.take({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None})
    assert not events.take({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    assert events.is_complete
    assert (events.choices[0].text, events.choices[0].finish_reason, events.usage) == ("a", "stop", (3, 1))
    assert json.loads(events.choices[0].tokens[0]) == ["a", (-0.5).hex(), [["b", (-1.5).hex()]]]


def test_a_whole_answer_is_its_chunks_joined() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    for part, pieces in (
        (
            {"message": {"role": "assistant", "content": "ab"}},
            [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}],
        ),
        ({"text": "ab"}, [{"text": "a"}, {"text": "b"}]),
    ):
        whole, chunks = Transcript(), Transcript()
        assert whole.take({"choices": [{"index": 0, "finish_reason": "stop"} | part], "usage": usage})
        for piece in pieces:
            chunks.take({"choices": [{"index": 0} | piece]})
        chunks.take({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}], "usage": usage})
        assert whole.is_complete and problems(whole, chunks) == set()


REQUEST = ChaosRequest(0, "greedy", "/v1/completions", {})


def stream(got: Transcript, *arrivals: float, error: str | None = None) -> Stream:
    return Stream(REQUEST, sent=0.0, transcript=got, arrivals=list(arrivals), ended=100.0, error=error)


def report(*streams: Stream, num_named: int = 1, num_faults: int = 1, **options: object) -> Report:
    faults = [Fault("kill", 10.0)] * num_faults
    return Report("T", num_named, faults, list(streams), {0: transcript()}, **options)  # type: ignore[arg-type]


def test_a_report_passes_or_says_why_not() -> None:
    assert report(stream(transcript())).has_passed
    assert report(stream(transcript()), num_named=2).unmet == ["1 faults were delivered, not 2"]
    assert report().unmet == ["no stream was sent"]
    lost = report(stream(Transcript(), error="reset"), stream(transcript()))
    assert (lost.has_passed, lost.counts["lost"], lost.unmet) == (False, 1, [])
    assert lost.lines()[-2:] == ["  request 0 (greedy): lost; reset", "T: FAILED"]


def test_a_silent_cut_fails_even_where_losses_are_tolerated() -> None:
    tolerated = frozenset({"lost"})
    assert report(stream(Transcript(), error="reset"), tolerated=tolerated).has_passed
    silent = report(stream(Transcript()), tolerated=tolerated)
    assert silent.unmet == ["1 streams ended early as if all were well"]
    assert not report(stream(transcript("nine"), error="reset"), tolerated=tolerated).has_passed


def test_time_to_resume_is_from_the_fault_to_the_end_of_the_longest_silence() -> None:
    under_way = stream(transcript(), 1.0, 9.9, 10.1, 12.5, 12.6)
    begun_after = stream(transcript(), 11.0, 15.0)
    ended_before = stream(transcript(), 1.0, 2.0)
    assert resume_times([under_way, begun_after, ended_before], [10.0]) == [2.5]
    assert resume_times([under_way], [10.0, 11.0]) == [2.5]
    assert resume_times([stream(transcript(), 1.0, 4.0, 4.1, 9.0)], [2.0, 5.0]) == [2.0, 4.0]
    assert resume_times([under_way], []) == []


def test_percentiles_are_values_that_were_measured() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, share) for share in (0.5, 0.75, 0.95, 1)] == [2.0, 3.0, 4.0, 4.0]
    assert percentile([7.0], 0.5) == 7.0


def test_requests_are_a_function_of_the_seed_and_of_every_kind() -> None:
    requests = make_requests(20, model="m", max_tokens=100, seed=3)
    assert requests == make_requests(20, model="m", max_tokens=100, seed=3)
    assert requests != make_requests(20, model="m", max_tokens=100, seed=4)
    assert {request.kind for request in requests} == set(KINDS)
    assert requests[:5] == make_requests(5, model="m", max_tokens=100, seed=3)
