"""What a gateway learns from the connections that engine replicas open to it."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from cluster.gateway.engines.connections import Connections
from cluster.gateway.requests.journals import Journals
from cluster.replica.delta_channel.client import DeltaClient
from engine.errors import EngineDead
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.cluster.gateway.test_gateway import Replicas, report

SECONDS = 120  # more than anything here takes
REQUEST = Request("mine", "hello", SamplingParams())


@pytest.fixture
def journals() -> Journals:
    return Journals()


@pytest.fixture
def engines() -> Replicas:
    return Replicas()


@pytest.fixture
async def connections(
    journals: Journals, engines: Replicas, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Connections]:
    """Replicas may be in trouble for no time."""
    monkeypatch.setattr("cluster.gateway.engines.connections.INTRODUCTION_SECONDS", 0.01)
    connections = Connections(engines, journals, patience=0.0)
    await connections.start("127.0.0.1", lambda: None)
    yield connections
    await connections.close()


@pytest.fixture
async def client() -> AsyncIterator[DeltaClient]:
    client = DeltaClient(on_lost=lambda _: None)
    yield client
    await client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0)


async def test_replicas_are_told_where_to_connect(connections: Connections, engines: Replicas) -> None:
    assert engines.introduced == {connections.address}


async def test_a_replicas_last_report_is_kept_when_it_is_gone(connections: Connections, client: DeltaClient) -> None:
    await client.connect(connections.address)
    client.report(report("one"))
    await until(lambda: [each.replica for each in connections.reports()] == ["one"])
    assert [each.replica for each in connections.reports()] == ["one"]
    await client.close()
    await until(lambda: connections.reports() == [])
    assert [each.replica for each in connections.all_reports()] == ["one"]


async def test_a_replica_in_trouble_loses_what_it_has_taken(
    connections: Connections, journals: Journals, client: DeltaClient
) -> None:
    name = await client.connect(connections.address)
    with journals.open(REQUEST) as journal:
        journal.source = name
        client.report(report("one", problem="no room for its workers"))
        async with asyncio.timeout(SECONDS):
            with pytest.raises(EngineDead, match="could not continue for 0 s: no room for its workers"):
                await anext(journal)


async def test_work_beside_ends_with_the_connections(journals: Journals, engines: Replicas) -> None:
    connections = Connections(engines, journals, patience=SECONDS)
    await connections.start("127.0.0.1", lambda: None)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    connections.spawn(work())
    await begun.wait()
    await connections.close()
    await asyncio.wait_for(ended.wait(), SECONDS)


async def test_a_look_that_fails_unforeseen_is_not_the_last(
    journals: Journals, engines: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.gateway.engines.connections.INTRODUCTION_SECONDS", 0.01)
    connections, num_looks = Connections(engines, journals, patience=SECONDS), 0

    def look() -> None:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 1:
            raise RuntimeError("unforeseen")

    await connections.start("127.0.0.1", look)
    await until(lambda: engines.num_introductions > 1)
    await connections.close()
    assert num_looks > 1
