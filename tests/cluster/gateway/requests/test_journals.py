"""A journal for each request that a gateway has, for as long as it has it."""

import asyncio
from dataclasses import replace

import pytest

from cluster.api.errors import ShuttingDown
from cluster.gateway.requests.journals import Journals
from engine.errors import DeadlineExceeded
from engine.outputs import CompletionOutput, RequestOutput
from engine.request import Request
from engine.sampling_params import SamplingParams

SECONDS = 120


def request(**fields: object) -> Request:
    return Request("mine", "hello", SamplingParams(**fields))


def delta(request_id: str) -> RequestOutput:
    return RequestOutput(request_id, 0, [7], [CompletionOutput(0, "x", [5])], finished=False)


def test_engines_know_each_request_by_an_id_of_its_own() -> None:
    journals = Journals()
    with journals.open(request()) as first, journals.open(request()) as second:
        assert first.request_id == second.request_id == "mine"
        assert len({first.request.id, second.request.id, "mine"}) == 3
        assert list(journals) == [first, second]
    assert list(journals) == []


def test_deltas_go_to_their_journals_and_those_of_requests_that_ended_nowhere() -> None:
    journals = Journals()
    with journals.open(request()) as first, journals.open(request()) as second:
        journals.accept([delta(second.request.id), delta("gone")], "a")
        assert (first.output_ids, second.output_ids) == ([], [[5]])
        assert journals.of("a") == [second] and journals.of("b") == []


async def test_the_time_that_is_left_goes_to_the_next_attempt() -> None:
    journals = Journals()
    with journals.open(replace(request(), timeout=0.05)) as journal:
        journal.next_attempt(is_suspect=False)
        assert journal.request.timeout < 0.05
        with pytest.raises(DeadlineExceeded, match=r"timeout=0\.05"):
            await anext(journal)
        journal.next_attempt(is_suspect=False)
        with pytest.raises(DeadlineExceeded):
            journal.raise_if_ended()


async def test_a_drain_waits_for_the_end_of_all() -> None:
    journals = Journals()
    journals.check_open()
    await journals.drain(SECONDS)
    with journals.open(request()):
        with journals.open(request()):
            waiting = asyncio.create_task(journals.drain(SECONDS))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    with pytest.raises(ShuttingDown):
        journals.check_open()


async def test_what_has_not_ended_when_the_grace_is_over_is_told_so() -> None:
    journals = Journals()
    with journals.open(request()) as journal:
        await journals.drain(0)
        with pytest.raises(ShuttingDown):
            await anext(journal)
