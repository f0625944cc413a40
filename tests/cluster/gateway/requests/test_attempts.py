"""What a gateway does with losses: which count, who is quarantined, and who goes on."""

import asyncio
from collections.abc import Callable

import pytest

from cluster.api.errors import Unavailable, as_api_error
from cluster.gateway.gateway import Gateway
from cluster.replica.delta_channel import server
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.refusals.refusal import EngineStopping, Refusal
from engine.errors import DeadlineExceeded, EngineDead, Overloaded, RequestQuarantined
from engine.request import Request
from engine.sampling_params import SamplingParams
from tests.cluster.gateway.test_gateway import REFERENCE, SECONDS, Replica, make_gateway, report, tokens

__all__ = ["make_gateway"]

POISON = 666  # as max_tokens


class Mortal(Replica):
    """Dies of every poisonous request, and all that it works on with it; lives again at once."""

    def __init__(self) -> None:
        super().__init__()
        self.num_deaths = 0
        self.inside: list[int] = []  # attempts of poisonous requests that are here
        self.most_second_attempts = 0

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        if request.params.max_tokens != POISON:
            return await super().answer(request, gateway)
        self.inside.append(request.resume.attempt)
        self.most_second_attempts = max(self.most_second_attempts, self.inside.count(1))
        await self.take(request, gateway)
        await asyncio.sleep(0.01)
        self.inside.remove(request.resume.attempt)
        self.num_deaths += 1
        await self.client.close()
        await asyncio.Event().wait()
        return ""


async def test_poison_is_quarantined_and_its_neighbours_go_on(make_gateway) -> None:
    replica = Mortal()
    gateway = await make_gateway(replica, max_attempts=3)
    poison = asyncio.create_task(poisonous(gateway))
    answers = await asyncio.wait_for(asyncio.gather(*(tokens(gateway, str(n)) for n in range(8))), SECONDS)
    assert answers == [REFERENCE] * 8
    with pytest.raises(
        RequestQuarantined, match="3 consecutive engine replicas were lost before this request"
    ) as raised:
        await asyncio.wait_for(poison, SECONDS)
    told = as_api_error(raised.value)
    assert (told.status, told.code, told.headers) == (500, "request_quarantined", {"x-should-retry": "false"})
    assert replica.num_deaths == 3


async def test_last_attempts_are_made_one_at_a_time(make_gateway) -> None:
    replica = Mortal()
    gateway = await make_gateway(replica, max_attempts=2)
    endings = await asyncio.gather(*(poisonous(gateway) for _ in range(5)), return_exceptions=True)
    assert [type(ending) for ending in endings] == [RequestQuarantined] * 5
    assert replica.most_second_attempts == 1


async def test_losses_with_progress_never_add_up(make_gateway) -> None:
    """As many replicas as tokens, each of them dying after one."""
    replicas = [Replica(dies_after=index + 1) for index in range(len(REFERENCE))]
    gateway = await make_gateway(*replicas, max_attempts=2)
    assert await asyncio.wait_for(tokens(gateway), SECONDS) == REFERENCE
    last = replicas[-1].requests[0]
    assert (last.resume.attempt, last.prompt, last.resume.output_ids) == (len(REFERENCE) - 1, [1], [REFERENCE[:-1]])


class Stopping(Replica):
    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        self.requests.append(request)
        return Refusal.of(EngineStopping("told to stop"))


async def test_a_request_that_is_given_back_has_lost_nothing(make_gateway) -> None:
    gateway = await make_gateway(Stopping(), Stopping(), Replica(), max_attempts=1)
    assert await asyncio.wait_for(tokens(gateway), SECONDS) == REFERENCE


class Full(Replica):
    """Has no room, and says so when it is asked, or after it has taken the request."""

    def __init__(self, *, has_taken: bool) -> None:
        super().__init__()
        self.has_taken = has_taken

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        if self.has_taken:
            await self.take(request, gateway)
        return Refusal.of(Overloaded("too many"))


async def test_a_request_that_an_engine_has_no_room_for_waits_in_the_gateway(make_gateway) -> None:
    replicas = [Full(has_taken=False), Full(has_taken=True), Full(has_taken=True), Replica()]
    gateway = await make_gateway(*replicas, max_attempts=1)
    assert await asyncio.wait_for(tokens(gateway), SECONDS) == REFERENCE
    gateway = await make_gateway(Full(has_taken=True), max_attempts=1, patience=0.1)
    with pytest.raises(EngineDead, match="took the request within 0 s: too many"):
        await asyncio.wait_for(tokens(gateway), SECONDS)


async def test_a_timeout_ends_what_waits_for_a_replica_and_what_runs(make_gateway) -> None:
    for replica in (Full(has_taken=True), Silent()):
        gateway = await make_gateway(replica, max_attempts=2)
        late = gateway.generate(Request("late", "hello", SamplingParams(max_tokens=12), timeout=0.1))
        with pytest.raises(DeadlineExceeded, match=r"timeout=0\.1"):
            await asyncio.wait_for(anext(late), SECONDS)
        assert len(gateway._journals) == 0


class Silent(Replica):
    """Says a few tokens and how it is, and then nothing any more."""

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        self.dies_after = None
        await self.take(request, gateway)
        self.client.report(report("frozen"))
        self.requests.append(request)
        await asyncio.Event().wait()
        return ""


async def test_a_silent_replica_is_killed_and_its_requests_go_on(make_gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TURN_SECONDS", 0.005)
    gateway = await make_gateway(Silent(), Replica(), max_attempts=2)
    assert await asyncio.wait_for(tokens(gateway), SECONDS) == REFERENCE
    while not gateway._engines.killed:
        await asyncio.sleep(0)
    assert gateway._engines.killed == ["frozen"]


async def test_health_is_what_the_replicas_report(make_gateway) -> None:
    replica = Replica()
    gateway = await make_gateway(replica)
    assert await gateway.health() == ["no engine replica is there"]
    await until(lambda: gateway._engines.introduced)
    await replica.client.connect(*gateway._engines.introduced)
    replica.client.report(report("one", "workers are restarting: worker 1 lost"))
    await until(gateway._connections._server.reports)
    assert await gateway.health() == ["one: workers are restarting: worker 1 lost"]
    replica.client.report(report("one"))
    while await gateway.health():
        await asyncio.sleep(0)
    assert [(each["replica"], each["stats"]["num_steps"]) for each in await gateway.engines()] == [("one", 0)]


async def test_draining_finishes_what_runs_and_refuses_the_rest(make_gateway) -> None:
    gateway = await make_gateway(Replica())
    stream = gateway.generate(Request("mine", "hello", SamplingParams()))
    first = await anext(stream)
    draining = asyncio.create_task(gateway.drain(SECONDS))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="shutting down") as raised:
        await tokens(gateway)
    assert (raised.value.status, raised.value.code, raised.value.headers) == (
        503,
        "shutting_down",
        {"retry-after": "10", "connection": "close"},
    )
    assert await gateway.health() == ["the server is shutting down"]
    outputs = [first, *[news async for news in stream]]
    assert [token for news in outputs for token in news.outputs[0].token_ids] == REFERENCE
    await asyncio.wait_for(draining, SECONDS)


async def test_draining_has_an_end(make_gateway) -> None:
    gateway = await make_gateway(Silent())
    running = asyncio.create_task(tokens(gateway))
    await until(lambda: gateway._engines.replicas[0].requests)
    await asyncio.wait_for(gateway.drain(0.01), SECONDS)
    with pytest.raises(Unavailable, match="shutting down"):
        await running


async def test_draining_ends_a_request_between_two_attempts(make_gateway) -> None:
    gateway = await make_gateway(Full(has_taken=False), patience=1.0)
    waiting = asyncio.create_task(tokens(gateway))
    await until(lambda: any(journal.is_over for journal in gateway._journals))  # this attempt is
    await asyncio.wait_for(gateway.drain(0), SECONDS)
    with pytest.raises(Unavailable, match="shutting down"):
        await asyncio.wait_for(waiting, SECONDS)


async def poisonous(gateway: Gateway) -> None:
    async for _ in gateway.generate(Request("poison", "hello", SamplingParams(max_tokens=POISON))):
        pass


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0)
