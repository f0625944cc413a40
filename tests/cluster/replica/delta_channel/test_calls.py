"""Requests that a gateway sends over the connections of engine replicas, which bring their ends."""

import asyncio
import datetime
import gc
import os
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import uvloop

from cluster.replica.delta_channel import calls
from cluster.replica.delta_channel.calls import ChannelCall, OpenCalls
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import GatewayAddress
from cluster.replica.delta_channel.packed_calls import packed_call, read_call
from cluster.replica.delta_channel.server import DeltaServer
from cluster.replica.delta_channel.taken import Take
from cluster.replica.refusals.lost import EngineLost
from cluster.replica.refusals.refusal import Refusal
from cluster.sockets import LOOPBACK, frame
from engine.errors import InvalidRequest
from engine.outputs import RequestOutput
from engine.pooling import Pooling
from engine.request import Adapter, ChatPrompt, Request, Resume, Share
from engine.sampling_params import SamplingParams
from tests.cluster.replica.delta_channel.test_server import REPORT

SECONDS = 30  # more than anything here takes
REQUEST = Request("one", "once", SamplingParams())
WHOLE = Request(
    "whole",
    ChatPrompt(
        [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}],
        tools=[{"type": "function", "function": {"parameters": {"maximum": 10**400}}}],
        variables={"enable_thinking": False},
    ),
    SamplingParams(n=2, stop=("a",), logit_bias={1: 2.0}, structured_outputs={"json": {"type": "object"}}),
    pooling=Pooling("logprobs", (1, 2)),
    adapter=Adapter("a", "/a", "00", 8),
    share=Share("key", 2.0),
    trace_headers={"traceparent": "00-0-0-01"},
    resume=Resume(1, [[1, 2], []], [-0.5, 0.0], "fp", is_suspect=True),
)


async def soon(awaited: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaited, SECONDS)


class Pair:
    """A gateway, and a replica that takes requests as it is told."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.deltas: list[RequestOutput] = []
        self.server = DeltaServer(lambda deltas, _: self.deltas.extend(deltas), lambda _: self.lost.set(), print)  # type: ignore[arg-type]
        self.client = DeltaClient(lambda _: None, self.take)
        self.taken: list[Request] = []
        self.then: Take

    async def take(self, request: Request, gateway: GatewayAddress) -> Refusal | str:
        self.taken.append(request)
        return await self.then(request, gateway)

    async def start(self) -> None:
        self.address = await self.server.start(LOOPBACK)
        self.name = await self.client.connect(self.address)
        self.client.report(REPORT)
        await self.until(lambda: bool(self.server.calls()))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0)

    @property
    def calls(self) -> OpenCalls:
        ((_, calls),) = self.server.calls()
        return calls

    def call(self, request: Request = REQUEST) -> ChannelCall:
        call = self.calls.begin(request)
        assert call is not None
        return call


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    await pair.start()
    yield pair
    await pair.client.close()
    await pair.server.close()


@pytest.mark.parametrize("value", [datetime.date(2026, 1, 1), Decimal(1), object])
def test_what_no_replica_would_read_is_refused_where_it_comes_from(value: object) -> None:
    request = replace(REQUEST, prompt=ChatPrompt([], variables={"today": value}))
    with pytest.raises(InvalidRequest, match="which JSON does not have"):
        packed_call(0, request)


async def test_a_call_ends_behind_its_last_delta(pair: Pair) -> None:
    async def then(request: Request, gateway: GatewayAddress) -> str:
        pair.client.send(gateway, [RequestOutput(request.id, 0, [], [], finished=True)])
        return "over Serve this would be the connection's name"

    pair.then = then
    calls_made = [pair.call(WHOLE), pair.call()]
    assert [await soon(call.result()) for call in calls_made] == [pair.name, pair.name]
    assert pair.taken == [WHOLE, REQUEST]
    assert [delta.request_id for delta in pair.deltas] == ["whole", "one"]
    await asyncio.sleep(0)
    assert (pair.calls.num_seqs, pair.calls.num_begun) == (0, 2)


async def test_a_refusal_arrives_as_it_was(pair: Pair) -> None:
    refusal = Refusal("invalid", "no", "prompt", "too_long")

    async def then(*_: Any) -> Refusal:
        return refusal

    pair.then = then
    assert await soon(pair.call().result()) == refusal


async def test_a_call_that_fails_is_told(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async def then(*_: Any) -> str:
        raise KeyError("a bug")

    pair.then = then
    told = await soon(pair.call().result())
    assert told == Refusal("engine_dead", "its call failed: KeyError('a bug')")
    assert "a call failed" in caplog.text


async def test_a_call_that_nobody_wants_is_cancelled_and_the_next_one_is_not(pair: Pair) -> None:
    cancelled = asyncio.Event()

    async def then(request: Request, _: GatewayAddress) -> str:
        if request == REQUEST:
            return "taken"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    pair.then = then
    call = pair.call(WHOLE)
    await pair.until(lambda: pair.taken == [WHOLE])
    call.cancel()
    call.cancel()
    assert await soon(pair.call().result()) == pair.name
    await soon(cancelled.wait())
    assert pair.calls.num_seqs == 0


async def test_calls_end_with_their_connection_at_both_ends(pair: Pair) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def then(*_: Any) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    pair.then = then
    call = pair.call()
    await soon(begun.wait())
    await pair.server.close()
    with pytest.raises(EngineLost, match="its connection ended"):
        await soon(call.result())
    await soon(ended.wait())


def test_a_connection_that_has_just_ended_can_be_written_to() -> None:
    """As long as nobody has noticed: by uvloop, which gateways run in, a closed one raises."""

    async def write_until_noticed() -> None:
        pair = Pair()
        await pair.start()
        ((_, calls),) = pair.server.calls()
        then = asyncio.Event()

        async def wait(*_: Any) -> str:
            await then.wait()
            return ""

        pair.then = wait
        first, cancelled = pair.call(), pair.call()
        await pair.until(lambda: len(pair.taken) == 2)
        made = []
        calls._writer.transport.abort()
        cancelled.cancel()
        while not pair.lost.is_set():
            made.append(calls.begin(REQUEST))
            assert pair.server.calls() == []
            await asyncio.sleep(0)
        for call in [first, *made]:
            assert call is not None
            with pytest.raises(EngineLost):
                await soon(call.result())
        then.set()
        await pair.client.close()
        await pair.server.close()

    uvloop.run(write_until_noticed())


def test_a_replica_may_write_to_a_gateway_that_has_just_gone() -> None:
    async def write_until_noticed() -> None:
        pair = Pair()
        await pair.start()
        (connection,) = pair.client._connections.values()
        connection.writer.transport.abort()
        while pair.client._connections:
            pair.client.report(REPORT)
            pair.client.send(pair.address, [RequestOutput("one", 0, [], [], finished=True)])
            await asyncio.sleep(0)
        await pair.client.close()
        await pair.server.close()

    uvloop.run(write_until_noticed())


async def test_a_replica_that_ends_answers_its_calls_first(pair: Pair) -> None:
    stopping = asyncio.Event()

    async def then(*_: Any) -> Refusal:
        await stopping.wait()
        return Refusal("moved", "it is told to stop")

    pair.then = then
    call = pair.call()
    await pair.until(lambda: bool(pair.taken))
    stopping.set()
    await pair.client.close()
    assert await soon(call.result()) == Refusal("moved", "it is told to stop")


async def test_a_request_that_no_frame_holds_is_not_sent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_FRAME_BYTES", 1000)
    assert pair.calls.begin(Request("long", "a" * 1000, SamplingParams())) is None
    assert (pair.calls.num_seqs, pair.calls.num_begun) == (0, 0)


async def test_what_waits_for_a_replica_that_reads_nothing_is_bounded(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def then(*_: Any) -> str:
        return ""

    pair.then = then
    monkeypatch.setattr(calls, "MAX_UNSENT_BYTES", 1 << 20)
    (connection,) = pair.client._connections.values()
    connection.writer.transport.pause_reading()
    sent = []
    while not pair.calls.is_full:  # the kernel takes some
        sent.append(pair.call(Request("long", "a" * (1 << 20), SamplingParams())))
    assert pair.calls._writer.transport.get_write_buffer_size() < 3 << 20
    connection.writer.transport.resume_reading()
    assert [await soon(call.result()) for call in sent] == [pair.name] * len(sent)
    assert not pair.calls.is_full


async def test_a_node_that_vanishes_ends_the_connection_in_silence(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """TCP says so by an error of its own."""
    calls = pair.calls
    (connection,) = pair.client._connections.values()
    for writer in (calls._writer, connection.writer):
        writer.transport._fatal_error(TimeoutError(110, "Connection timed out"))  # type: ignore[attr-defined]
    await soon(pair.lost.wait())
    await soon(asyncio.wait([connection.watch]))
    assert connection.watch.exception() is None
    await pair.server.close()
    gc.collect()
    assert caplog.text == ""


class Evil:
    def __reduce__(self) -> Any:
        return os.getpid, ()


@pytest.mark.parametrize(
    "sent",
    [
        *(
            pickle.dumps(call)
            for call in (
                7,
                (7,),
                (7, REQUEST, b""),
                ("7", REQUEST),
                (7, "text"),
                Evil(),
            )
        ),
        *(pickle.dumps(call) for call in ((7, Evil()), (7, os.system))),
        *(b"", b"nonsense", pickle.dumps((7, REQUEST))[:-9], b"\x80\x05cbuiltins\neval\n."),
    ],
)
def test_what_is_no_call_is_not_read(sent: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        read_call(sent)


async def test_a_gateway_that_sends_something_else_is_dropped(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.calls._writer.write(frame(pickle.dumps((0, Evil()))))
    await soon(pair.lost.wait())
    assert "is no call, and its connection is closed: a call holds a" in caplog.text
    assert pair.taken == []
