"""Whom a gateway hears, and what it knows of them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import NAME_BYTES, WELCOME, EngineReport, GatewayAddress
from cluster.replica.delta_channel.server import DeltaServer
from cluster.sockets import LENGTH, LOOPBACK, MAX_FRAME_BYTES, TOKEN_BYTES, frame
from engine.outputs import RequestOutput
from engine.records.stats import EngineStats

SECONDS = 30  # more than anything here takes
DELTA = RequestOutput("request", 0, [1], [], finished=False)
STATS = EngineStats(**dict.fromkeys(EngineStats.__slots__, 0))
REPORT = EngineReport("replica", "node", 1, None, STATS)


class Gateway:
    def __init__(self) -> None:
        self.deltas: asyncio.Queue[tuple[list[RequestOutput], str]] = asyncio.Queue()
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self.server = DeltaServer(
            lambda deltas, connection: self.deltas.put_nowait((deltas, connection)),
            self.lost.put_nowait,
            lambda report, seconds: None,
        )
        self.address: GatewayAddress


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    gateway.address = await gateway.server.start(LOOPBACK)
    yield gateway
    await gateway.server.close()


@pytest.fixture
async def client() -> AsyncIterator[DeltaClient]:
    client = DeltaClient(lambda address: None)
    yield client
    await client.close()


async def test_deltas_come_with_their_connection_and_reports_stay(gateway: Gateway, client: DeltaClient) -> None:
    name = await client.connect(gateway.address)
    for problem in (None, "its workers are restarting"):
        client.report(replace(REPORT, problem=problem))
        client.send(gateway.address, [DELTA])
        assert await asyncio.wait_for(gateway.deltas.get(), SECONDS) == ([DELTA], name)
        assert gateway.server.reports() == [replace(REPORT, problem=problem)]
        assert gateway.server.in_trouble(0) == ([(name, problem)] if problem else [])
    assert gateway.server.in_trouble(SECONDS) == []


async def test_who_does_not_know_the_token_is_turned_away(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection(gateway.address.host, gateway.address.port)
    writer.write(frame(bytes(TOKEN_BYTES + NAME_BYTES)))
    assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    writer.close()


async def test_a_frame_that_is_too_long_ends_the_connection(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection(gateway.address.host, gateway.address.port)
    writer.write(frame(gateway.address.token + bytes(NAME_BYTES)))
    assert await reader.read(1) == WELCOME
    writer.write(LENGTH.pack(MAX_FRAME_BYTES + 1))
    assert await asyncio.wait_for(gateway.lost.get(), SECONDS) == bytes(NAME_BYTES).hex()
    writer.close()
