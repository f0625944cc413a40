"""How a journal's attempt is put to a replica, and how it hears of the attempt's end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cluster.gateway.engines.replicas import Replicas
from cluster.gateway.requests.journals import Journals
from cluster.replica.delta_channel.messages import EngineReport, GatewayAddress
from cluster.replica.refusals.lost import EngineLost, RequestMoved
from cluster.replica.refusals.refusal import Refusal
from engine.errors import InvalidRequest
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.cluster.gateway import test_gateway
from tests.cluster.gateway.test_gateway import REFERENCE, Replica, report

SECONDS = 120  # more than anything here takes
REQUEST = Request("mine", "hello", SamplingParams(max_tokens=len(REFERENCE)))


@asynccontextmanager
async def started(replica: Replica, journals: Journals) -> AsyncIterator[Replicas]:
    replicas = Replicas(test_gateway.Replicas(replica), journals, patience=SECONDS)
    await replicas.connections.start("127.0.0.1", lambda: None)
    yield replicas
    await replica.client.close()
    await replicas.connections.close()


async def test_deltas_come_over_the_connection_that_the_call_names() -> None:
    journals = Journals()
    async with asyncio.timeout(SECONDS), started(Replica(), journals) as replicas:
        with journals.open(REQUEST) as journal:
            async with replicas.call(journal):
                news = [news async for news in journal]
                assert journal.source is not None and replicas.connections.has(journal.source)
    assert [token_id for each in news for output in each.outputs for token_id in output.token_ids] == REFERENCE


class Ends(Replica):
    """Its call ends in a certain way."""

    def __init__(self, end: Refusal | str | EngineLost) -> None:
        super().__init__()
        self.end = end

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        if isinstance(self.end, EngineLost):
            raise self.end
        return self.end


@pytest.mark.parametrize(
    ("end", "error", "words"),
    [
        (Refusal.of(InvalidRequest("too long", param="prompt")), InvalidRequest, "too long"),
        (EngineLost("the actor died"), EngineLost, "the actor died"),
        ("a connection that has ended", EngineLost, "its connection ended before the last delta"),
    ],
    ids=["refused", "lost", "its connection is gone"],
)
async def test_a_call_that_ends_otherwise_fails_the_attempt(
    end: Refusal | str | EngineLost, error: type[Exception], words: str
) -> None:
    journals = Journals()
    async with asyncio.timeout(SECONDS), started(Ends(end), journals) as replicas:
        with journals.open(REQUEST) as journal:
            async with replicas.call(journal):
                with pytest.raises(error, match=words):
                    await anext(journal)


async def test_a_request_that_serve_keeps_is_taken_back_once_a_connected_replica_can_take_it() -> None:
    """As while the only replica leaves: Serve does not list it, and waits for the next one."""
    journals, replica = Journals(), test_gateway.Silent()
    async with asyncio.timeout(SECONDS), started(replica, journals) as replicas:
        await replica.client.connect(replicas.connections.address)
        leaving = replace(report("leaving", "no step has ended for 10 s"), is_leaving=True)
        await told(replicas, replica, leaving)
        with journals.open(REQUEST) as journal:
            async with replicas.call(journal):
                replicas.take_back()
                await told(replicas, replica, replace(leaving, problem=None))
                replicas.take_back()
                with pytest.raises(RequestMoved, match="that is connected can take it"):
                    await anext(journal)


async def told(replicas: Replicas, replica: Replica, news: EngineReport) -> None:
    """Until the gateway has the report."""
    replica.client.report(news)
    while [each.problem for each in replicas.connections.reports()] != [news.problem]:
        await asyncio.sleep(0)


async def test_a_caller_that_leaves_ends_the_call() -> None:
    journals, replica = Journals(), test_gateway.Silent()
    async with asyncio.timeout(SECONDS), started(replica, journals) as replicas:
        with journals.open(REQUEST) as journal:
            async with replicas.call(journal):
                while not replica.requests:
                    await asyncio.sleep(0)
            assert replica.num_cancelled == 1
