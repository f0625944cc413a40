"""Which of the connected engine replicas a request goes to."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from cluster.gateway.engines.calling import MANY, MORE_SEQS, NUM_DRAWN
from cluster.gateway.engines.connections import Connections
from cluster.gateway.engines.prefixes import Prefixes, beginnings_of
from cluster.gateway.requests.journals import Journals
from cluster.replica.delta_channel import calls
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import EngineReport, GatewayAddress
from cluster.replica.refusals.lost import EngineFull
from cluster.replica.refusals.refusal import Refusal
from engine.request import Request, Resume
from engine.sampling_params import SamplingParams
from tests.cluster.gateway.engines.test_connections import connections, engines, journals, until
from tests.cluster.gateway.test_gateway import Replicas, report

__all__ = ["connections", "engines", "journals"]  # the fixtures
REQUEST = Request("mine", "hello", SamplingParams())
PROMPT_OF_64_KB = replace(REQUEST, prompt="a" * 65536)


@pytest.fixture
def clients() -> list[DeltaClient]:
    """Of `replicas`."""
    return []


@pytest.fixture
async def replicas(
    connections: Connections, clients: list[DeltaClient]
) -> AsyncIterator[Callable[..., Awaitable[list[str]]]]:
    """Connect replicas with these reports, which take requests and never end them; whom they have
    come to, in order.
    """

    async def connect(*reports: EngineReport) -> list[str]:
        called: list[str] = []

        for each in reports:

            async def take(request: Request, _: GatewayAddress, name: str = each.replica) -> Refusal:
                called.append(name)
                await asyncio.Event().wait()
                return Refusal("failed", "")

            clients.append(DeltaClient(lambda _: None, take))
            await clients[-1].connect(connections.address)
            clients[-1].report(each)
        await until(lambda: len(connections.reports()) == len(reports))
        return called

    yield connect
    for client in clients:
        for call in [call for connection in client._connections.values() for call in connection.calls.running.values()]:
            call.cancel()
        await client.close()


def busy(name: str, num_seqs: int) -> EngineReport:
    plain = report(name)
    return replace(plain, stats=replace(plain.stats, num_seqs_running=num_seqs - 1, num_seqs_waiting=1))


async def test_requests_go_to_the_replica_with_the_fewest(
    connections: Connections, engines: Replicas, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    """Whether they are its own or, as the replica has said, those of other gateways; in turn where
    all have as many.
    """
    called = await replicas(busy("one", 3), busy("two", 1), busy("three", 1))
    calls = [connections.calling.begin(REQUEST) for _ in range(7)]
    assert None not in calls
    await until(lambda: len(called) == 7)
    assert Counter(called) == {"one": 1, "two": 3, "three": 3}
    assert engines.counted == Counter(called)
    for call in calls:
        call.cancel()
    await until(lambda: not any(engines.counted.values()))
    for num_called in (8, 9, 10):
        call = connections.calling.begin(REQUEST)
        await until(lambda num_called=num_called: len(called) == num_called)
        call.cancel()
        await asyncio.sleep(0)
    assert Counter(called[7:]) == {"two": 2, "three": 1} or Counter(called[7:]) == {"two": 1, "three": 2}


async def test_a_request_counts_as_its_sequences(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    called = await replicas(report("one"), report("two"))
    many = connections.calling.begin(replace(REQUEST, params=SamplingParams(n=3)))
    assert many is not None
    await until(lambda: len(called) == 1)
    (first,), (other,) = called, {"one", "two"} - set(called)
    for _ in range(3):
        connections.calling.begin(REQUEST)
    await until(lambda: len(called) == 4)
    assert called[1:] == [other] * 3
    many.cancel()
    await asyncio.sleep(0)
    for _ in range(3):
        connections.calling.begin(REQUEST)
    await until(lambda: len(called) == 7)
    assert called[4:] == [first] * 3


async def test_a_replica_that_leaves_is_called_if_no_other_can_take_a_request(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    leaving = replace(report("leaving"), is_leaving=True)
    called = await replicas(leaving, report("in trouble", "no room"), busy("busy", 99))
    connections.calling.begin(REQUEST)
    await until(lambda: called == ["busy"])


async def test_a_replica_that_leaves_serves_alone(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    called = await replicas(replace(report("leaving"), is_leaving=True), report("in trouble", "no room"))
    connections.calling.begin(REQUEST)
    await until(lambda: called == ["leaving"])


async def test_tokens_go_on_where_they_came_from(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    """With the arithmetic that made them; where none has it, a replica says so."""
    called = await replicas(replace(busy("of old", 9), fingerprint="fp_old"), busy("new", 1))
    for wanted in ("fp_old", "fp_of_nobody"):
        connections.calling.begin(replace(REQUEST, resume=Resume(1, fingerprint=wanted)))
    await until(lambda: called == ["of old", "new"])


async def test_where_none_can_take_a_request_serve_is_asked(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    assert connections.calling.begin(REQUEST) is None
    await replicas(report("in trouble", "no room"))
    assert connections.calling.begin(REQUEST) is None


async def test_replicas_that_read_nothing_get_no_more(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    called = await replicas(report("one"), report("two"))
    monkeypatch.setattr(calls, "MAX_UNSENT_BYTES", -1)  # so that both do
    with pytest.raises(EngineFull, match="MiB of requests wait to be read by it"):
        connections.calling.begin(REQUEST)
    assert called == []


async def test_a_prompt_goes_where_its_beginning_went(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    called = await replicas(report("one"), report("two"))
    for turn in range(1, 6):
        for number in range(3):
            call = connections.calling.begin(replace(REQUEST, prompt=f"conversation {number} " + "and on " * 99 * turn))
            await until(lambda num_called=3 * turn + number - 2: len(called) == num_called)
            call.cancel()
            await asyncio.sleep(0)
    assert called == called[:3] * 5 and len(set(called)) == 2


@pytest.mark.parametrize(("num_bytes", "num_more"), [(200, 0), (800, 3), (65536, MORE_SEQS)])
async def test_a_replica_gets_no_more_requests_than_a_beginning_is_worth(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]], num_bytes: int, num_more: int
) -> None:
    called = await replicas(report("one"), report("two"))
    for _ in range(num_more + 2):
        connections.calling.begin(replace(REQUEST, prompt="a" * num_bytes))
    await until(lambda: len(called) == num_more + 2)
    assert sorted(Counter(called).values()) == [1, num_more + 1]


async def test_of_many_requests_a_beginning_is_worth_a_share(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    called = await replicas(busy("one", 40), busy("two", 60), busy("three", 61))
    for name in ("two", "three"):
        connections.calling.prefixes.remember(beginnings_of(PROMPT_OF_64_KB), name)
    connections.calling.begin(PROMPT_OF_64_KB)
    await until(lambda: called == ["two"])
    connections.calling.prefixes = Prefixes()
    connections.calling.prefixes.remember(beginnings_of(PROMPT_OF_64_KB), "three")
    connections.calling.begin(PROMPT_OF_64_KB)
    await until(lambda: called == ["two", "one"])


async def test_what_a_replica_has_got_since_its_report_counts_once_for_every_gateway(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]]
) -> None:
    """Others choose by the same reports: each must not fill the least busy one up by itself."""
    called = await replicas(busy("one", 2), busy("two", 8))
    ((_, calls), _) = connections._server.calls()
    calls.reported(num_gateways=3)
    for _ in range(3):
        connections.calling.begin(REQUEST)
    await until(lambda: called == ["one", "one", "two"])


async def test_of_many_replicas_those_that_know_the_prompt_and_two_others_are_compared(
    connections: Connections, replicas: Callable[..., Awaitable[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    called = await replicas(*(busy(f"replica {number}", 10 + number) for number in range(MANY + 2)))
    drawn: list[int] = []

    def sample(those: list[Any], count: int) -> list[Any]:
        drawn.append(count)
        return sorted(those, key=lambda one: one[0].replica)[-count:]

    monkeypatch.setattr("cluster.gateway.engines.calling.random.sample", sample)
    connections.calling.begin(REQUEST)
    await until(lambda: called == [f"replica {MANY}"])
    connections.calling.prefixes.remember(beginnings_of(PROMPT_OF_64_KB), "replica 3")
    connections.calling.begin(PROMPT_OF_64_KB)
    await until(lambda: called[1:] == ["replica 3"])
    assert drawn == [NUM_DRAWN, NUM_DRAWN]


@pytest.mark.parametrize("num_known", [0, 100])
async def test_what_a_replica_refuses_it_does_not_have(
    connections: Connections,
    replicas: Callable[..., Awaitable[list[str]]],
    clients: list[DeltaClient],
    num_known: int,
) -> None:
    """But for what it has had before."""
    called = await replicas(report("one"), report("two"))
    refuses = asyncio.Event()

    async def refuse(request: Request, _: GatewayAddress) -> Refusal:
        await refuses.wait()
        return Refusal("overloaded", "full")

    for client in clients:
        for connection in client._connections.values():
            connection.calls._take = refuse
    beginnings, prefixes = beginnings_of(PROMPT_OF_64_KB), connections.calling.prefixes
    prefixes.remember(beginnings[:num_known], "two")
    call = connections.calling.begin(PROMPT_OF_64_KB)
    assert call is not None and called == []
    assert len(beginnings) in prefixes.known(beginnings).values(), "others that begin so may follow it"
    refuses.set()
    assert isinstance(await call.result(), Refusal)
    await asyncio.sleep(0)
    assert prefixes.known(beginnings) == ({"two": num_known} if num_known else {})
    assert not any(len(client._told) for client in clients), "nor do they tell other gateways"
    taken = connections.calling.begin(replace(PROMPT_OF_64_KB, id="again"))
    assert taken is not None
    taken.cancel()
    await asyncio.sleep(0)
    assert max(prefixes.known(beginnings).values()) == len(beginnings), "whoever goes away may have been taken"


async def test_gateways_learn_from_a_replica_what_others_have_sent_it(
    connections: Connections,
    engines: Replicas,
    replicas: Callable[..., Awaitable[list[str]]],
    clients: list[DeltaClient],
) -> None:
    """Those that are connected then, and those that connect later. A report brings it."""
    called = await replicas(report("one"), report("two"))
    beginnings = beginnings_of(PROMPT_OF_64_KB)
    connections.calling.prefixes.remember(beginnings, "two")
    others = [Connections(engines, Journals(), patience=0.0) for _ in range(2)]
    for other in others:
        await other.start("127.0.0.1", lambda: None)
    await clients[1].connect(others[0].address)
    connections.calling.begin(PROMPT_OF_64_KB)
    await until(lambda: called == ["two"])
    clients[1].hear(connections.address, b"".join(beginnings))  # as `Requests.take` does
    await clients[1].connect(others[1].address)
    clients[1].report(report("two"))
    for other in others:
        await until(lambda other=other: len(other.reports()) == 1)
        assert other.calling.prefixes.known(beginnings) == {"two": len(beginnings)}
    for other in others:
        await other.close()
