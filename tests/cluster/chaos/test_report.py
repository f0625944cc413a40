"""When a run under faults has passed, and what it measured."""

from cluster.chaos.client import Stream
from cluster.chaos.report import Fault, Report, percentile, resume_times
from cluster.chaos.requests import ChaosRequest
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
    went_on = stream(transcript(), *(number / 4 for number in range(80)), 20.5)
    assert resume_times([went_on], [10.0]) == [20.5 - 19.75]


def test_percentiles_are_values_that_were_measured() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, share) for share in (0.5, 0.75, 0.95, 1)] == [2.0, 3.0, 4.0, 4.0]
    assert percentile([7.0], 0.5) == 7.0
