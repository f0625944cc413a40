"""Long prompts go to a prefill engine first, and to one that answers whatever becomes of them
there.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cluster.gateway.engines.prefixes import beginnings_of
from cluster.gateway.gateway import Gateway
from cluster.replica.calls.engines import PrefillEngines
from cluster.replica.delta_channel import calls
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.refusals.refusal import Refusal
from engine.admission.queue_limits import NOTHING
from engine.errors import InvalidRequest, Overloaded
from engine.outputs import CompletionOutput, RequestOutput
from engine.pooling import Pooling
from engine.request import ChatPrompt, Request, Resume
from engine.sampling_params import SamplingParams
from tests.cluster.gateway.test_gateway import REFERENCE, SECONDS, Replica, Replicas, report

LEAST = 128  # tokens
BLOCKS_AT = "10.0.0.2:7000"
LONG = "What is said is said. " * 60
PARAMS = SamplingParams(max_tokens=12)


class Computes(Replica):
    """A prefill engine, which can do something else in place of it."""

    def __init__(
        self, refusal: Exception | None = None, *, dies: bool = False, hangs: bool = False, fails: bool = False
    ) -> None:
        super().__init__(dies_after=0 if dies else None)
        self.refusal, self.hangs, self.fails = refusal, hangs, fails

    async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        if self.refusal is not None or self.hangs:
            self.requests.append(request)
        if self.refusal is not None:
            return Refusal.of(self.refusal)
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            output = CompletionOutput(0, "", [], first_index=0, finish_reason="error")
            failed = RequestOutput(request.id, request.resume.attempt, [1], [output], True, error="a step failed")
            self.client.send(gateway, [failed])
            return await self.client.connect(gateway)
        return await super().answer(request, gateway)


@asynccontextmanager
async def gateway_with(
    answering: Replica, computing: Replica | None, *, is_shared: bool = True, **changes: object
) -> AsyncIterator[Gateway]:
    """`changes`: of the prefill engine's report."""
    engines = PrefillEngines(Replicas(computing or Computes()), LEAST, is_shared)
    gateway = Gateway(Replicas(answering), max_attempts=1, patience=SECONDS, prefill=engines)
    prefill = gateway._answering._prefill
    await gateway.start("127.0.0.1")
    try:
        await answering.client.connect(gateway._connections.address)
        answering.client.report(report("answering"))
        if computing is not None:
            await computing.client.connect(prefill.connections.address)
            told = {"computes_prompts": True, "blocks_at": BLOCKS_AT} | changes
            computing.client.report(replace(report("computing"), **told))
        async with asyncio.timeout(SECONDS):
            while not gateway._connections.reports() or (computing and not prefill.connections.reports()):
                await asyncio.sleep(0)
        yield gateway
    finally:
        for replica in (answering, computing):
            if replica is not None:
                await replica.client.close()
        await gateway.close()


async def ask(gateway: Gateway, prompt: object = LONG, **changes: object) -> list[int]:
    request = replace(Request("mine", prompt, PARAMS), **changes)
    return [i async for news in gateway.generate(request) for output in news.outputs for i in output.token_ids]


def counted(gateway: Gateway) -> Counter[str]:
    figures = gateway._observers.figures.counters.figures()
    return Counter({labels[0]: int(by) for (name, labels), by in figures.items() if name == "squadron:prefills"})


async def test_a_long_prompt_is_computed_first_and_its_answer_knows() -> None:
    answering, computing = Replica(), Computes()
    async with gateway_with(answering, computing) as gateway:
        assert await ask(gateway, cache_salt="team", params=replace(PARAMS, n=1, temperature=0.5)) == REFERENCE
        assert counted(gateway) == {"computed": 1}
        assert 'squadron:prefill_engines{model_name=""} 1.0' in gateway.monitoring.text().decode()
        told = {each["replica"]: (each["computes_prompts"], each["blocks_at"]) for each in await gateway.engines()}
        assert told == {"answering": (False, None), "computing": (True, BLOCKS_AT)}
    (first,), (second,) = computing.requests, answering.requests
    assert (first.prompt, first.cache_salt, first.params.max_tokens) == (LONG, "team", 1)
    assert first.id != second.id and not first.is_prefilled
    assert second.is_prefilled and second.params.max_tokens == 12
    assert (first.blocks_at, second.blocks_at) == (None, BLOCKS_AT)


async def test_a_prompt_is_computed_there_once_and_its_sequel_if_it_is_long() -> None:
    answering, computing = Replica(), Computes()
    async with gateway_with(answering, computing) as gateway:
        for prompt in (LONG, LONG, LONG + "And so on.", LONG + "Then it is not. " * 60):
            assert await ask(gateway, prompt) == REFERENCE
    assert [request.prompt[len(LONG) :][:4] for request in computing.requests] == ["", "Then"]
    assert [request.is_prefilled for request in answering.requests] == [True, False, False, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "short"},
        {"prompt": list(range(LEAST - 1))},
        {"prompt": ChatPrompt([{"role": "user", "content": "short"}])},
        {"pooling": Pooling("last")},
        {"params": replace(PARAMS, prompt_logprobs=1)},
        {"resume": Resume(output_ids=[REFERENCE[:3]])},
    ],
    ids=str,
)
async def test_what_would_gain_nothing_is_not_sent(changes: dict[str, object]) -> None:
    answering, computing = Replica(), Computes()
    async with gateway_with(answering, computing) as gateway:
        await ask(gateway, **changes)
        assert counted(gateway) == {}
    assert computing.requests == [] and not answering.requests[0].is_prefilled


@pytest.mark.parametrize(
    "fault", [{"refusal": Overloaded("many wait")}, {"dies": True}, {"hangs": True}], ids=["full", "dies", "hangs"]
)
async def test_what_fails_there_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch, fault: dict[str, object]
) -> None:
    computing = Computes(**fault)
    if computing.hangs:
        monkeypatch.setattr("cluster.gateway.prefill.prefill.SECONDS", 0.05)
    answering = Replica()
    async with gateway_with(answering, computing) as gateway:
        assert await ask(gateway) == REFERENCE
        assert counted(gateway) == {"failed": 1}
    assert len(computing.requests) == 1 and not answering.requests[0].is_prefilled


async def test_a_prefill_engine_that_reads_nothing_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much waits to be sent to it as may."""
    answering, computing = Replica(), Computes()
    async with gateway_with(answering, computing) as gateway, asyncio.timeout(SECONDS):
        with monkeypatch.context() as patch:
            patch.setattr(calls, "MAX_UNSENT_BYTES", -1)
            asked = asyncio.create_task(ask(gateway))
            while not counted(gateway) and not asked.done():
                await asyncio.sleep(0)
        assert await asked == REFERENCE
        assert counted(gateway) == {"failed": 1}
    assert computing.requests == [] and not answering.requests[0].is_prefilled


@pytest.mark.parametrize("changes", [{"fingerprint": "fp_other"}, {"blocks_at": None}, {"problem": "it restarts"}])
async def test_a_replica_whose_blocks_nobody_would_find_is_not_asked(changes: dict[str, object]) -> None:
    answering, computing = Replica(), Computes()
    async with gateway_with(answering, computing, **changes) as gateway:
        assert await ask(gateway) == REFERENCE
    assert computing.requests == [] and not answering.requests[0].is_prefilled


async def test_blocks_that_all_nodes_have_in_a_folder_are_fetched_from_nobody() -> None:
    answering, computing = Replica(), Computes()
    async with gateway_with(answering, computing, is_shared=False, node="another") as gateway:
        assert await ask(gateway) == REFERENCE
    assert answering.requests[0].is_prefilled and answering.requests[0].blocks_at is None


async def test_an_engine_of_another_node_is_told_where_blocks_are_served() -> None:
    answering, computing = Replica(), Computes()
    async with gateway_with(answering, computing, node="another") as gateway:
        assert await ask(gateway) == REFERENCE
    assert answering.requests[0].blocks_at == BLOCKS_AT


async def test_without_a_prefill_engine_that_runs_everything_is_as_ever() -> None:
    answering = Replica()
    async with gateway_with(answering, None) as gateway:
        assert await ask(gateway) == REFERENCE
        assert counted(gateway) == {} and await gateway.health() == []
    assert not answering.requests[0].is_prefilled


@asynccontextmanager
async def asking_while_it_hangs(answering: Replica) -> AsyncIterator[tuple[Gateway, asyncio.Task[list[int]]]]:
    """The prefill engine has got the prompt."""
    computing = Computes(hangs=True)
    async with gateway_with(answering, computing) as gateway, asyncio.timeout(SECONDS):
        asking = asyncio.create_task(ask(gateway))
        while not computing.requests:
            await asyncio.sleep(0)
        yield gateway, asking


async def test_a_client_that_goes_away_meanwhile_ends_the_prefill() -> None:
    answering = Replica()
    async with asking_while_it_hangs(answering) as (gateway, asking):
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled() and answering.requests == []
        assert not len(gateway._answering._prefill._journals)


async def test_a_client_that_goes_away_meanwhile_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with asking_while_it_hangs(Replica()) as (gateway, asking):
        gateway._observers.watcher.logs_requests = True
        with caplog.at_level(logging.INFO, "squadron.gateway"):
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    (line,) = [record for record in caplog.records if record.message.startswith("request ended: ")]
    assert (vars(line)["id"], vars(line)["code"]) == ("mine", "client_disconnected")


async def test_who_gives_up_does_not_wait_for_the_prompt() -> None:
    answering = Replica()
    async with asking_while_it_hangs(answering) as (gateway, asking):
        assert gateway._journals.waiting.load == NOTHING, "the engines that answer have room"
        (journal,) = gateway._journals
        journal.abort()
        assert await asking == []
        assert not answering.requests and counted(gateway) == Counter()


async def test_a_prompt_that_failed_there_is_not_counted_as_computed() -> None:
    answering, computing = Replica(), Computes(fails=True)
    async with gateway_with(answering, computing) as gateway:
        assert await ask(gateway) == REFERENCE
        assert counted(gateway) == {"failed": 1}
    assert not answering.requests[0].is_prefilled


@pytest.mark.parametrize("fault", [None, Overloaded("many wait")], ids=["computed there", "refused there"])
async def test_a_prompt_whose_request_was_refused_stays_new(fault: Exception | None) -> None:
    """The engine that is to answer refuses it, so that it has nothing of it."""

    class Refuses(Replica):
        async def answer(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
            if not self.requests:
                self.requests.append(request)
                return Refusal.of(InvalidRequest("it is refused"))
            return await super().answer(request, gateway)

    answering, computing = Refuses(), Computes(fault)
    async with gateway_with(answering, computing) as gateway:
        with pytest.raises(InvalidRequest, match="it is refused"):
            await ask(gateway)
        assert await ask(gateway) == REFERENCE
        assert await ask(gateway) == REFERENCE
    assert len(computing.requests) == 2, "not a third time: it has been answered"


@asynccontextmanager
async def gateway_of_two(*answering: Replica) -> AsyncIterator[tuple[Gateway, Computes]]:
    """Whose engine "one" has had the long prompt, and "two" connects after it."""
    one, two = answering
    computing = Computes()
    async with gateway_with(one, computing) as gateway:
        assert await ask(gateway) == REFERENCE
        assert len(computing.requests) == 1
        await two.client.connect(gateway._connections.address)
        two.client.report(report("two"))
        async with asyncio.timeout(SECONDS):
            while len(gateway._connections.reports()) < 2:
                await asyncio.sleep(0)
        try:
            yield gateway, computing
        finally:
            await two.client.close()


async def test_a_known_prompt_that_another_engine_answers_is_new_there() -> None:
    """The one that has it has more sequences than that is worth."""
    one, two = Replica(), Replica()
    async with gateway_of_two(one, two) as (gateway, computing):
        assert await ask(gateway) == REFERENCE
        assert len(computing.requests) == 1, "it goes where it is known"
        busy = report("answering")
        one.client.report(replace(busy, stats=replace(busy.stats, num_seqs_running=500)))
        async with asyncio.timeout(SECONDS):
            while not any(each.stats.num_seqs_running for each in gateway._connections.reports()):
                await asyncio.sleep(0)
        assert await ask(gateway) == REFERENCE
        assert (len(computing.requests), len(two.requests)) == (2, 1)


async def test_a_prompt_is_new_once_the_engine_is_lost_that_has_had_it() -> None:
    one, two = Replica(), Replica()
    async with gateway_of_two(one, two) as (gateway, computing):
        await one.client.close()
        async with asyncio.timeout(SECONDS):
            while len(gateway._connections.reports()) > 1:
                await asyncio.sleep(0)
        assert await ask(gateway) == REFERENCE
        assert (len(computing.requests), len(two.requests)) == (2, 1)


async def test_a_prompt_is_new_once_a_cache_has_lost_it() -> None:
    """Also that of the only engine: all of it, as its workers restart, or its blocks."""
    answering, computing = Replica(), Computes()
    async with gateway_with(answering, computing) as gateway:
        assert await ask(gateway) == REFERENCE
        for number, lost in ((1, b""), (1, b"".join(beginnings_of(answering.requests[0])))):
            answering.client.report(replace(report("answering"), num_cleared=number), lost)
            async with asyncio.timeout(SECONDS):
                while gateway._connections.calling.num_known(Request("mine", LONG, PARAMS)):
                    await asyncio.sleep(0)
            assert await ask(gateway) == REFERENCE
            assert await ask(gateway) == REFERENCE
    assert len(computing.requests) == 3


@pytest.mark.parametrize("is_frozen", [True, False])
async def test_prefill_engines_that_pause_or_sleep_are_not_asked(*, is_frozen: bool) -> None:
    computing = Computes()
    async with gateway_with(Replica(), computing, is_frozen=is_frozen) as gateway:
        assert await ask(gateway) == REFERENCE
    assert len(computing.requests) == (not is_frozen)


async def test_a_prompt_whose_client_went_away_stays_new() -> None:
    answering = Replica()
    async with asking_while_it_hangs(answering) as (gateway, asking):
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert gateway._connections.calling.num_known(Request("mine", LONG, PARAMS)) == 0
