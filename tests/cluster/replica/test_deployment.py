"""Engine replicas and a gateway in this process: a request whose engine stops goes on, with the
tokens it would have had.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cluster.gateway.gateway import Gateway
from cluster.owner import this_process
from cluster.replica.delta_channel.messages import Delta, GatewayAddress, PlainDelta
from cluster.replica.deployment import EngineDeployment
from cluster.replica.refusals.refusal import Refusal
from engine.config import EngineConfig
from engine.errors import EngineDead, InvalidRequest
from engine.request import Request, Resume
from engine.sampling_params import SamplingParams

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"
CONFIG = EngineConfig.create(
    model=str(DEMO), device="cpu", num_threads=1, kv_cache_memory_bytes=8 << 20, max_restarts=0
)
SECONDS = 60  # more than anything here takes
PARAMS = SamplingParams(max_tokens=400, seed=7, ignore_eos=True)


class Replica(EngineDeployment):
    """One that is ended by `stop` alone: Python itself would call the coroutine function and await
    nothing.
    """

    stop = EngineDeployment.__del__

    def __del__(self) -> None:  # type: ignore[override]
        pass


class Call:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def result(self) -> Refusal | str:
        result: Refusal | str = await self._answer
        return result

    def cancel(self) -> None:
        pass


class Replicas:
    """Takes a request's attempts to one replica after the other."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas

    def generate(self, request: Request, gateway: GatewayAddress) -> Call:
        return Call(self._replicas[min(request.resume.attempt, len(self._replicas) - 1)].generate(request, gateway))

    def count_call(self, replica: str, change: int) -> None:
        pass

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> None:
        pass

    async def num_settled(self) -> None:
        return None


@asynccontextmanager
async def two_replicas(config: EngineConfig) -> AsyncIterator[list[Replica]]:
    replicas = []
    for _ in range(2):
        replica = Replica.__new__(Replica)
        await replica.__init__(config, this_process())
        replicas.append(replica)
    yield replicas
    for replica in replicas:
        await replica.stop()


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    async with two_replicas(CONFIG) as replicas:
        yield replicas


@pytest.fixture
def patient(tmp_path: Path) -> EngineConfig:
    """The engine of a tokenizer that cannot tell by its bytes that a text is too long: it has to
    tokenize it.
    """
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["rstrip"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return EngineConfig.create(**CONFIG.model_dump() | {"tokenizer": str(tmp_path)})


@pytest.fixture
async def gateway(replicas: list[Replica]) -> AsyncIterator[Gateway]:
    gateway = Gateway(Replicas(replicas), max_attempts=2, patience=SECONDS)
    await gateway.start("127.0.0.1")
    yield gateway
    await gateway.close()


class Broken:
    """A worker whose every step fails, and the next one's would."""

    def execute(self, request: object) -> None:
        raise RuntimeError("broken")

    def is_beyond_repair(self, error: Exception) -> bool:
        return True


async def give_up(replica: Replica) -> None:
    """The worker fails, and no restart is allowed."""
    replica._replica.engine._executor._worker = Broken()


async def test_an_engine_that_gives_up_is_retried(gateway: Gateway, replicas: list[Replica]) -> None:
    await check_that_the_stream_goes_on(gateway, replicas, give_up)


async def test_a_replica_that_is_stopped_is_retried(gateway: Gateway, replicas: list[Replica]) -> None:
    await check_that_the_stream_goes_on(gateway, replicas, Replica.stop)


async def test_without_an_attempt_left_the_client_hears_why(replicas: list[Replica]) -> None:
    gateway = Gateway(Replicas(replicas), max_attempts=1, patience=SECONDS)
    await gateway.start("127.0.0.1")
    stream = gateway.generate(Request("mine", "one two", PARAMS))
    await anext(stream)
    await give_up(replicas[0])
    with pytest.raises(EngineDead, match=r"the engine was lost and is restarting: .*max_restarts=0 are used up"):
        async for _ in stream:
            pass
    await gateway.close()


async def test_a_long_prompt_does_not_hold_up_a_short_one(patient: EngineConfig) -> None:
    replica = Replica.__new__(Replica)
    await replica.__init__(patient, this_process())
    gateway = Gateway(Replicas([replica]), max_attempts=1, patience=SECONDS)
    await gateway.start("127.0.0.1")
    ended = []

    async def ask(name: str, prompt: str) -> None:
        with suppress(InvalidRequest):
            async for _ in gateway.generate(Request(name, prompt, SamplingParams(max_tokens=2))):
                pass
        ended.append(name)

    await asyncio.gather(ask("long", "one two " * (1 << 18)), ask("short", "one two"))
    assert ended == ["short", "long"]
    await gateway.close()
    await replica.stop()


async def test_an_abort_stays_behind_its_add(gateway: Gateway, replicas: list[Replica]) -> None:
    """Else what the caller went away from, while it was tokenized, would run to its end."""
    engine, loop, order = replicas[0]._replica.engine, asyncio.get_running_loop(), []
    begun, may_add, aborted = asyncio.Event(), threading.Event(), asyncio.Event()
    add_request, abort = engine.add_request, engine.abort

    def add_late(request: Request, *seconds: float | None) -> None:
        loop.call_soon_threadsafe(begun.set)
        may_add.wait(SECONDS)
        add_request(request, *seconds)
        order.append("add")

    def note_abort(request_id: str) -> None:
        order.append("abort")
        abort(request_id)
        loop.call_soon_threadsafe(aborted.set)

    engine.add_request, engine.abort = add_late, note_abort
    call = asyncio.create_task(replicas[0].generate(Request("gone", "one two", PARAMS), gateway._connections.address))
    await asyncio.wait_for(begun.wait(), SECONDS)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    may_add.set()
    await asyncio.wait_for(aborted.wait(), SECONDS)
    assert order == ["add", "abort"]


async def test_gateways_are_told_of_prompts_that_the_engine_has_accepted(
    gateway: Gateway, replicas: list[Replica]
) -> None:
    """What was refused is in no cache."""
    address, replica, params = gateway._connections.address, replicas[0], SamplingParams(max_tokens=1)
    names = bytes(range(32))
    refused = Request("long", "one two " * 100_000, params, beginnings=names)
    assert isinstance(await replica.generate(refused, address), Refusal)
    assert not replica._replica.requests._client._told
    accepted = Request("short", "one two", params, beginnings=names[:16])
    assert isinstance(await replica.generate(accepted, address), str)
    assert bytes(replica._replica.requests._client._told.recent()) == names[:16]


async def test_a_later_attempt_at_a_request_replaces_the_earlier_one(gateway: Gateway, replicas: list[Replica]) -> None:
    """Its gateway lost the earlier one before the replica knew, as where a connection breaks, or
    Serve delivers what was taken back.
    """
    told: asyncio.Queue[tuple[int, list[int]]] = asyncio.Queue()

    def note(deltas: list[Delta], _: str) -> None:
        for delta in deltas:
            ids = delta.token_ids if isinstance(delta, PlainDelta) else [*chain(*(o.token_ids for o in delta.outputs))]
            told.put_nowait((delta.attempt, ids))

    gateway._connections._server._on_deltas = note
    attempts = [Request("mine", "one two", PARAMS, resume=Resume(attempt)) for attempt in range(2)]
    earlier, later = (
        asyncio.create_task(replicas[0].generate(each, gateway._connections.address)) for each in attempts
    )
    async with asyncio.timeout(SECONDS):
        refusal = await earlier
        assert isinstance(refusal, Refusal) and "a later attempt" in refusal.message
        assert isinstance(await later, str)
        num_tokens = 0
        while num_tokens < (PARAMS.max_tokens or 0):
            attempt, ids = await told.get()
            num_tokens += len(ids) * attempt
    assert num_tokens == PARAMS.max_tokens


async def check_that_the_stream_goes_on(gateway: Gateway, replicas: list[Replica], end: Any) -> None:
    undisturbed = [output async for output in gateway.generate(Request("alone", "one two", PARAMS))]
    stream = gateway.generate(Request("mine", "one two", PARAMS))
    outputs = [await anext(stream)]
    await end(replicas[0])
    outputs += [output async for output in stream]
    assert [output.attempt for output in (outputs[0], outputs[-1])] == [0, 1]
    assert outputs[-1].error is None and outputs[-1].outputs[0].finish_reason == "length"
    assert tokens_of(outputs) == tokens_of(undisturbed)


def tokens_of(outputs: list[Any]) -> list[int]:
    return [token_id for output in outputs for choice in output.outputs for token_id in choice.token_ids]
