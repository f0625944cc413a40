"""Deltas join to what they are parts of, and a request's times leave no gap."""

import pytest

from engine.outputs import (
    MAX_SPELLS,
    Accumulator,
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    failed_request,
)


def delta(first_index: int, token_ids: list[int], *, index: int = 0, finish_reason: str | None = None) -> RequestOutput:
    logprobs = [{token_id: Logprob(-1.0, 1, b"x")} for token_id in token_ids]
    choice = CompletionOutput(index, "x" * len(token_ids), token_ids, first_index, -1.0, logprobs, finish_reason)
    return RequestOutput("r", 0, [1], [choice], finished=finish_reason is not None)


def test_deltas_of_several_choices_are_joined_each_by_itself() -> None:
    total = Accumulator()
    for part in (delta(0, [5]), delta(0, [8], index=1), delta(1, [6, 7]), delta(3, [], finish_reason="stop")):
        whole = total.add(part)
    first, second = whole.outputs
    assert (first.token_ids, first.text, first.finish_reason) == ([5, 6, 7], "xxx", "stop")
    assert [list(position) for position in first.logprobs or ()] == [[5], [6], [7]]
    assert (second.token_ids, second.finish_reason) == ([8], None)


def test_what_is_joined_leaves_the_deltas_as_they_were() -> None:
    first, total = delta(0, [5]), Accumulator()
    total.add(first)
    total.add(delta(1, [6]))
    assert first.outputs[0].token_ids == [5]


def test_a_delta_that_is_missing_is_noticed() -> None:
    total = Accumulator()
    total.add(delta(0, [5]))
    with pytest.raises(AssertionError, match="missing or came twice"):
        total.add(delta(2, [7]))


def test_phases_add_up_to_the_life_of_a_request() -> None:
    metrics = RequestMetrics(arrival_time=10.0, phase_start=10.0)
    for phase, now in (("prefill", 11.0), ("decode", 13.0), ("swap", 14.0), ("decode", 18.0)):
        metrics.enter(phase, now)
    assert metrics.why(20.0).seconds == {"queue": 1.0, "prefill": 2.0, "decode": 3.0, "swap": 4.0}
    metrics.finish(21.0)
    assert metrics.seconds == {"queue": 1.0, "prefill": 2.0, "decode": 4.0, "swap": 4.0}
    assert metrics.finished_time == 21.0


def test_a_request_that_never_ran_ends_with_its_error() -> None:
    output = failed_request("r", 2, [1, 2], "no")
    assert (output.finished, output.error, output.attempt) == (True, "no", 2)
    assert [choice.finish_reason for choice in output.outputs] == ["error"]


def test_the_first_phases_of_a_request_are_kept_with_their_times() -> None:
    metrics = RequestMetrics(arrival_time=10.0, phase_start=10.0)
    metrics.enter("prefill", 11.0)
    metrics.finish(13.0)
    assert metrics.spells == [("queue", 10.0, 11.0), ("prefill", 11.0, 13.0)]
    for now in range(14, 200):
        metrics.enter("swap", now)
    assert len(metrics.spells) == MAX_SPELLS and len(metrics.seconds) == 3
