"""The gateway over real sockets, with engine replicas that do as told."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import fields
from typing import Any

import pytest

from cluster.api.errors import Unavailable
from cluster.gateway.gateway import Gateway
from cluster.replica.delta_channel import calls
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import EngineReport, GatewayAddress
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal
from engine.errors import EngineDead, FingerprintChanged, InvalidRequest
from engine.outputs import CompletionOutput, RequestOutput
from engine.records.stats import EngineStats
from engine.request import Adapter, Request
from engine.sampling_params import SamplingParams
from tests.engine.support.objects import num_objects_of

WHY = {"seconds": {"decode": 1.0}, "draft_tokens": 8, "accepted_tokens": 6, "accepted_tokens_per_pos": [4, 2]}
REFERENCE = list(range(100, 112))
SECONDS = 120  # more than anything here takes


class Replica:
    """An engine replica that answers every request with REFERENCE, and can die after some
    tokens.
    """

    def __init__(
        self, dies_after: int | None = None, max_tokens: int | None = None, fingerprint: str = "fp_one"
    ) -> None:
        """`max_tokens`: as it fixes it."""
        self.fingerprint = fingerprint
        self.client = DeltaClient(on_lost=lambda _: None, take=self.answer)
        self.dies_after = dies_after
        self.max_tokens = max_tokens
        self.requests: list[Request] = []
        self.num_cancelled = 0

    async def take(self, request: Request, gateway: GatewayAddress) -> str:
        connection = await self.client.connect(gateway)
        self.client.send(
            gateway,
            [RequestOutput(request.id, request.resume.attempt, [], [], finished=False, fingerprint=self.fingerprint)],
        )
        return connection

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        self.requests.append(request)
        if request.resume.fingerprint not in (None, self.fingerprint):
            return Refusal.of(FingerprintChanged("it computes otherwise"))
        connection = await self.take(request, gateway)
        start = len(request.resume.output_ids[0]) if request.resume.output_ids else 0
        for index in range(start, len(REFERENCE)):
            if index == self.dies_after:
                await self.client.close()
                await asyncio.Event().wait()
            finished = index == len(REFERENCE) - 1
            output = CompletionOutput(0, "x", [REFERENCE[index]], index, finish_reason="length" if finished else None)
            delta = RequestOutput(
                request.id, request.resume.attempt, [1], [output], finished, max_tokens=self.max_tokens
            )
            self.client.send(gateway, [delta])
            await asyncio.sleep(0)
        return connection


class Call:
    def __init__(self, replica: Replica, answer: Coroutine[None, None, Refusal | str]) -> None:
        self._replica = replica
        self._task = asyncio.create_task(answer)

    async def result(self) -> Refusal | str:
        return await self._task

    def cancel(self) -> None:
        self._replica.num_cancelled += not self._task.done()
        self._task.cancel()


class Replicas:
    """Takes requests to the first replica that is not dead."""

    def __init__(self, *replicas: Replica) -> None:
        self.replicas = list(replicas)
        self.introduced: set[GatewayAddress] = set()
        self.killed: list[str] = []
        self.reached = True
        self.running = True
        self.counted: Counter[str] = Counter()  # calls over connections that are open, by replica
        self.settled: int | None = None
        self.left = asyncio.Event()
        self.num_introductions = 0

    def generate(self, request: Request, gateway: GatewayAddress) -> Call:
        replica = self.replicas[min(request.resume.attempt, len(self.replicas) - 1)]
        return Call(replica, replica.answer(request, gateway))

    def count_call(self, replica: str, change: int) -> None:
        self.counted[replica] += change

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        self.introduced.add(gateway)
        self.num_introductions += 1
        return self.reached

    async def are_running(self) -> bool:
        return self.running

    async def num_settled(self) -> int | None:
        return self.settled

    async def leave(self) -> None:
        self.left.set()

    async def kill(self, replica: str) -> None:
        self.killed.append(replica)

    async def probe(self, adapter: Adapter | None = None) -> list[str]:
        return [] if self.replicas else ["no engine replica is there"]

    async def ask_any(self, question: str, *args: Any) -> None:
        """As Serve, which starts a replica for it."""
        self.replicas = self.replicas or [Replica()]

    async def ask(self, question: str, *args: Any) -> list[Any]:
        return [WHY if replica.requests and args == (replica.requests[-1].id,) else None for replica in self.replicas]


@pytest.fixture
async def make_gateway() -> AsyncIterator[Callable[..., Coroutine[None, None, Gateway]]]:
    gateways: list[tuple[Gateway, Replicas]] = []

    async def make(
        *replicas: Replica, max_attempts: int = 1, patience: float = SECONDS, starts_for_requests: bool = False
    ) -> Gateway:
        engines = Replicas(*replicas)
        gateway = Gateway(
            engines, max_attempts=max_attempts, patience=patience, starts_for_requests=starts_for_requests
        )
        await gateway.start("127.0.0.1")
        gateways.append((gateway, engines))
        return gateway

    yield make
    for gateway, engines in gateways:
        for replica in engines.replicas:
            await replica.client.close()
        await gateway.close()


async def tokens(gateway: Gateway, request_id: str = "mine", **options: object) -> list[int]:
    stream = gateway.generate(Request(request_id, "hello", SamplingParams(max_tokens=12)))
    return [token_id async for news in stream for output in news.outputs for token_id in output.token_ids]


def report(replica: str, problem: str | None = None) -> EngineReport:
    """Of an engine that has done nothing yet."""
    names = [field.name for field in fields(EngineStats)]
    return EngineReport(replica, "node", 1, problem, EngineStats(**dict.fromkeys(names, 0)))


async def test_a_server_without_engines_is_well_if_requests_start_one(make_gateway) -> None:
    """Otherwise a load balancer would never send it the request that does."""
    assert await (await make_gateway()).health() == ["no engine replica is there"]
    idle = await make_gateway(starts_for_requests=True)
    assert (await idle.health(), await idle.deep_health()) == ([], [])


async def test_an_engine_starts_for_an_adapter(make_gateway) -> None:
    """Which is told to be sent again while there is none, and would never be tried."""
    adapter = Adapter("tone", "/adapters/tone", "00", 8)
    assert await (await make_gateway()).try_adapter(adapter) == ["no engine replica is there"]
    assert await (await make_gateway(starts_for_requests=True)).try_adapter(adapter) == []


async def test_many_streams_over_one_connection(make_gateway) -> None:
    gateway = await make_gateway(Replica())
    assert await asyncio.gather(*(tokens(gateway, "same id") for _ in range(40))) == [REFERENCE] * 40


async def test_a_request_waits_while_its_replica_reads_nothing(make_gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica()
    gateway = await make_gateway(replica)
    async with asyncio.timeout(SECONDS):
        await read_nothing(gateway, replica, monkeypatch)
        asked = asyncio.create_task(tokens(gateway))
        while [journal.attempt for journal in gateway._journals] != [2]:
            await asyncio.sleep(0)
        assert replica.requests == []
        monkeypatch.setattr(calls, "MAX_UNSENT_BYTES", 1 << 20)
        assert await asked == REFERENCE


async def test_the_first_replica_fixes_the_length_for_those_after_it(make_gateway) -> None:
    replicas = [Replica(dies_after=3, max_tokens=40), Replica(dies_after=6, max_tokens=7), Replica(max_tokens=90)]
    gateway = await make_gateway(*replicas, max_attempts=3)
    stream = gateway.generate(Request("mine", "hello", SamplingParams(max_tokens=None)))
    told = {news.max_tokens async for news in stream}
    assert told == {40}
    assert [replica.requests[0].params.max_tokens for replica in replicas] == [None, 40, 40]


async def test_requests_leave_nothing_behind(make_gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether their streams are read to the end or left."""
    monkeypatch.setattr("cluster.gateway.requests.history.NUM_REQUESTS_REMEMBERED", 8)
    replica = Replica()
    gateway = await make_gateway(replica)
    await tokens(gateway)  # the connection is there
    num_tasks = num_tasks_of_requests()

    async def serve(num: int) -> Counter[str]:
        """Objects there are after so many requests."""
        for number in range(num):
            request = Request(f"{number}", "hello", SamplingParams(max_tokens=12))
            async with aclosing(gateway.generate(request)) as stream:
                async for _ in stream:
                    if number % 2:
                        break
        replica.requests.clear()
        while num_tasks_of_requests() > num_tasks:  # those that were cancelled end
            await asyncio.sleep(0)
        return num_objects_of("cluster", "engine")

    before = await serve(40)
    grown = await serve(40) - before
    assert grown.total() < 20, grown  # the last request's may be there still


def num_tasks_of_requests() -> int:
    """All but the connections': a replica's witness connects when its process is ready, perhaps
    much later.
    """
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return sum(name != "DeltaServer._serve" for name in names)


async def test_a_replica_serves_several_gateways(make_gateway) -> None:
    replica = Replica()
    gateways = [await make_gateway(replica) for _ in range(3)]
    answers = await asyncio.gather(*(tokens(gateway) for gateway in gateways for _ in range(5)))
    assert answers == [REFERENCE] * 15
    assert len({request.id for request in replica.requests}) == 15


async def test_a_lost_replica_ends_in_a_clear_error(make_gateway) -> None:
    gateway = await make_gateway(Replica(dies_after=5))
    stream = gateway.generate(Request("mine", "hello", SamplingParams()))
    got: list[int] = []
    with pytest.raises(EngineDead, match="the engine was lost and is restarting: its connection ended"):
        async for news in stream:
            got += news.outputs[0].token_ids
    assert got == REFERENCE[:5]


async def test_another_replica_goes_on_with_what_came(make_gateway) -> None:
    second = Replica()
    gateway = await make_gateway(Replica(dies_after=5), Replica(dies_after=9), second, max_attempts=3)
    assert await tokens(gateway) == REFERENCE
    (request,) = second.requests
    assert (request.resume.attempt, request.resume.output_ids) == (2, [REFERENCE[:9]])
    assert request.params.seed is not None


async def test_refusals_come_as_the_exceptions_they_were(make_gateway) -> None:
    class Refuses(Replica):
        async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
            return Refusal.of(InvalidRequest("too long", param="prompt", code="context_length_exceeded"))

    gateway = await make_gateway(Refuses())
    with pytest.raises(InvalidRequest, match="too long") as raised:
        await tokens(gateway)
    assert (raised.value.param, raised.value.code) == ("prompt", "context_length_exceeded")


async def test_a_call_that_fails_is_a_lost_replica(make_gateway) -> None:
    class Dies(Replica):
        async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
            raise EngineLost("the actor died")

    gateway = await make_gateway(Dies(), Replica(), max_attempts=2)
    assert await tokens(gateway) == REFERENCE


class Stopped(Replica):
    """A replica whose engine has given up, and which Serve has not replaced yet."""

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        self.requests.append(request)
        return Refusal.of(EngineDead("max_restarts=3 are used up"))


async def test_a_replica_that_is_not_replaced_yet_takes_no_attempt(make_gateway) -> None:
    gateway = await make_gateway(*(Stopped() for _ in range(3)), Replica(), max_attempts=2)
    assert await tokens(gateway) == REFERENCE


async def test_refusals_come_to_an_end(make_gateway) -> None:
    stopped = Stopped()
    gateway = await make_gateway(stopped, max_attempts=2, patience=0.2)
    with pytest.raises(
        EngineDead, match=r"took the request within 0 s: (max_restarts=3 are used up|no replica answered)"
    ):
        await tokens(gateway)
    assert len(stopped.requests) > 1


async def test_with_one_attempt_a_refusal_is_told_at_once(make_gateway) -> None:
    stopped = Stopped()
    gateway = await make_gateway(stopped)
    with pytest.raises(EngineDead, match="max_restarts=3 are used up"):
        await asyncio.wait_for(tokens(gateway), SECONDS)
    assert len(stopped.requests) == 1


class Silent(Replica):
    """A replica that requests do not get through to."""

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        self.requests.append(request)
        await asyncio.Event().wait()
        return ""


@pytest.mark.parametrize("running", [False, True])
async def test_a_gateway_ends_if_it_reaches_none_of_the_replicas_that_run(
    make_gateway, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    """Where none runs it waits, and so does the request, for as long as it may."""
    monkeypatch.setattr("cluster.gateway.engines.connections.INTRODUCTION_SECONDS", 0.01)
    monkeypatch.setattr("cluster.gateway.engines.reach.BLIND_SECONDS", 0.1)
    gateway = await make_gateway(Silent(), patience=2.0)
    gateway._engines.reached, gateway._engines.running = False, running
    asking = asyncio.create_task(tokens(gateway))
    if running:
        await asyncio.wait_for(gateway._engines.left.wait(), SECONDS)
        asking.cancel()
    else:
        with pytest.raises(EngineDead, match="no engine replica took the request within 2 s: no replica answered"):
            await asyncio.wait_for(asking, SECONDS)
        assert not gateway._engines.left.is_set()


async def test_a_gateway_that_has_streams_does_not_end(make_gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.gateway.engines.connections.INTRODUCTION_SECONDS", 0.01)
    monkeypatch.setattr("cluster.gateway.engines.reach.BLIND_SECONDS", 0.0)
    gateway = await make_gateway(Taking(None))
    stream = asyncio.create_task(tokens(gateway))
    replica = gateway._engines.replicas[0]
    await replica.has_taken.wait()
    gateway._engines.reached = False
    asked = gateway._engines.num_introductions
    while gateway._engines.num_introductions < asked + 10:
        await asyncio.sleep(0)
    assert not stream.done() and not gateway._engines.left.is_set()
    stream.cancel()


class Taking(Replica):
    """A replica that takes a request, reports on itself, and does no more."""

    def __init__(self, problem: str | None) -> None:
        super().__init__()
        self.problem = problem
        self.has_taken = asyncio.Event()

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        await self.take(request, gateway)
        self.has_taken.set()
        while True:
            self.client.report(report("a", self.problem))
            await asyncio.sleep(0.01)


async def test_a_replica_in_trouble_is_waited_for_as_long_as_one_that_is_not_there(
    make_gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.gateway.engines.connections.INTRODUCTION_SECONDS", 0.01)
    gateway = await make_gateway(Taking("its workers restart"), max_attempts=3, patience=3.0)
    with pytest.raises(EngineDead, match="the engine replica could not continue for 3 s: its workers restart"):
        await asyncio.wait_for(tokens(gateway), SECONDS)


async def suspecting(make_gateway, patience: float) -> Gateway:
    """A gateway whose next request makes its second attempt, the last, in its turn."""

    class Dies(Replica):
        async def answer(self, request: Request, address: GatewayAddress) -> Refusal | str:
            await self.take(request, address)
            while any(journal.source is None for journal in gateway._journals):
                await asyncio.sleep(0)
            raise EngineLost("the actor died")

    gateway: Gateway = await make_gateway(Dies(), Replica(), max_attempts=2, patience=patience)
    return gateway


async def test_the_turn_for_a_last_attempt_is_not_waited_for_without_end(make_gateway) -> None:
    gateway = await suspecting(make_gateway, patience=0.3)
    async with gateway._answering._limits.last_turn:
        with pytest.raises(EngineDead, match="within 0 s: other requests are making their last attempt"):
            await asyncio.wait_for(tokens(gateway), SECONDS)


@pytest.mark.parametrize("way", ["abort", "drain", "leave"])
async def test_a_request_that_is_ended_waits_for_no_turn(make_gateway, way: str) -> None:
    gateway = await suspecting(make_gateway, patience=1000)
    last_turn = gateway._answering._limits.last_turn
    async with last_turn, asyncio.timeout(SECONDS):
        task = asyncio.create_task(collect_reasons(gateway))
        while not last_turn._waiters:
            await asyncio.sleep(0)
        if way == "abort":
            gateway.abort("mine")
            assert await task == ["abort"]
        elif way == "drain":
            await gateway.drain(0)
            with pytest.raises(Unavailable, match="shutting down"):
                await task
        else:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
    assert not last_turn.locked() and not last_turn._waiters


async def test_an_abort_ends_the_pause(make_gateway) -> None:
    stopped = Stopped()
    gateway = await make_gateway(stopped, max_attempts=2, patience=1000)
    task = asyncio.create_task(collect_reasons(gateway))
    while not stopped.requests:
        await asyncio.sleep(0)
    gateway.abort("mine")
    assert (await asyncio.wait_for(task, SECONDS))[-1] == "abort"


async def test_an_abort_ends_a_request_whose_replica_reads_nothing(
    make_gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Replica()
    gateway = await make_gateway(replica, patience=1.0)
    async with asyncio.timeout(SECONDS):
        await read_nothing(gateway, replica, monkeypatch)
        task = asyncio.create_task(collect_reasons(gateway))
        while [journal.attempt for journal in gateway._journals] != [2]:
            await asyncio.sleep(0)
        gateway.abort("mine")
        assert await task == ["abort"]
    assert replica.requests == []


async def read_nothing(gateway: Gateway, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect the replica as one whose socket takes no more."""
    await replica.client.connect(gateway._connections.address)
    replica.client.report(report("stuck"))
    monkeypatch.setattr(calls, "MAX_UNSENT_BYTES", -1)
    while not gateway._connections.reports():
        await asyncio.sleep(0)


async def collect_reasons(gateway: Gateway) -> list[str | None]:
    stream = gateway.generate(Request("mine", "hello", SamplingParams()))
    return [output.finish_reason async for news in stream for output in news.outputs]


async def test_closing_the_stream_cancels_the_call(make_gateway) -> None:
    replica = Replica()
    gateway = await make_gateway(replica)
    stream = gateway.generate(Request("mine", "hello", SamplingParams()))
    await anext(stream)
    await stream.aclose()
    assert replica.num_cancelled == 1


async def test_abort_ends_the_stream(make_gateway) -> None:
    replica = Replica()
    gateway = await make_gateway(replica)
    stream = gateway.generate(Request("mine", "hello", SamplingParams()))
    await anext(stream)
    gateway.abort("mine")
    reasons = [output.finish_reason async for news in stream for output in news.outputs]
    assert reasons[-1] == "abort"
    assert replica.num_cancelled == 1


async def test_a_wrong_token_is_not_let_in(make_gateway) -> None:
    replica = Replica()
    gateway = await make_gateway(replica)
    assert await tokens(gateway) == REFERENCE
    address = gateway._connections.address
    with pytest.raises(ConnectionRefusedError, match="did not take our token"):
        await replica.client.connect(GatewayAddress(address.host, address.port, b"x" * 32))


async def test_why_is_asked_by_the_clients_id(make_gateway) -> None:
    gateway = await make_gateway(Replica())
    assert await tokens(gateway, "mine") == REFERENCE
    assert await gateway.why("mine") == WHY
    assert await gateway.why("never seen") is None


async def test_why_tells_what_a_lost_replica_cost(make_gateway) -> None:
    gateway = await make_gateway(Replica(dies_after=5), Replica(), max_attempts=3)
    asked_at = time.monotonic()
    assert await tokens(gateway, "mine") == REFERENCE
    told = await gateway.why("mine")
    lost, decode = told["seconds"].items()
    assert lost[0] == "earlier attempts" and 0 < lost[1] < time.monotonic() - asked_at
    assert decode == ("decode", 1.0) and told == WHY | {"seconds": told["seconds"]}
