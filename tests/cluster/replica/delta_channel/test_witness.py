"""Who answers for a replica's life: itself, or a witness beside it while it is busy; neither for
one that is stopped.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.replica.delta_channel import server, witness
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import OF_A_WITNESS, EngineReport, GatewayAddress
from cluster.replica.delta_channel.server import SILENT_TURNS, TURN_SECONDS, DeltaServer
from cluster.sockets import TOKEN_BYTES
from cluster.workers.processes.process_state import read_start_time
from engine.records.stats import EngineStats

ROOT = Path(__file__).resolve().parents[4]
SECONDS = 60  # more than anything here takes
STATS = EngineStats(**dict.fromkeys(EngineStats.__slots__, 0))
REPORT = EngineReport("replica", "node", os.getpid(), None, STATS)


@dataclass
class Gateway:
    """A gateway's ears, and what they heard."""

    server: DeltaServer = field(init=False)
    address: GatewayAddress = field(init=False)
    silent: list[int] = field(default_factory=list)  # processes that were given up
    gave_up: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        self.server = DeltaServer(lambda deltas, connection: None, lambda connection: self.lost.set(), self.on_silent)
        self.address = await self.server.start("127.0.0.1")

    def on_silent(self, report: EngineReport, seconds: float) -> None:
        self.silent.append(report.pid)
        self.gave_up.set()

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(TURN_SECONDS)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    await gateway.start()
    yield gateway
    await gateway.server.close()


@pytest.fixture
async def client() -> AsyncIterator[DeltaClient]:
    client = DeltaClient(lambda address: None)
    yield client
    await client.close()


@pytest.fixture
async def replica(gateway: Gateway) -> AsyncIterator[asyncio.subprocess.Process]:
    where = (gateway.address.host, str(gateway.address.port), gateway.address.token.hex())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster.replica.delta_channel.silent_replica", *where),
        cwd=ROOT,
        stdin=-1,
        stdout=-1,
    )
    yield process
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def read_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), SECONDS)).decode().strip()


async def test_a_replica_that_holds_the_interpreters_lock_is_busy(gateway: Gateway, replica) -> None:
    await read_line(replica)
    replica.stdin.write(b"6\n")
    assert await read_line(replica) == "held"
    assert (gateway.silent, len(gateway.server.reports())) == ([], 1)


async def test_a_replica_that_is_stopped_is_given_up(gateway: Gateway, replica) -> None:
    await read_line(replica)
    replica.send_signal(signal.SIGSTOP)
    await asyncio.wait_for(gateway.gave_up.wait(), SECONDS)
    assert gateway.silent == [replica.pid]


async def test_a_replica_that_is_busy_for_too_long_is_given_up(gateway: Gateway, replica, monkeypatch) -> None:
    monkeypatch.setattr(server, "BUSY_TURNS", 2 * SILENT_TURNS)
    await read_line(replica)
    replica.stdin.write(f"{SECONDS}\n".encode())
    await asyncio.wait_for(gateway.gave_up.wait(), SECONDS)
    assert gateway.silent == [replica.pid]


async def test_a_witness_ends_with_its_replica(gateway: Gateway, replica) -> None:
    number = int(await read_line(replica))
    assert read_start_time(number) is not None
    replica.kill()
    await asyncio.wait_for(gateway.lost.wait(), SECONDS)
    async with asyncio.timeout(SECONDS):
        while read_start_time(number) is not None:
            await asyncio.sleep(TURN_SECONDS)
    assert gateway.silent == []


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_witness_that_is_killed_or_stopped_is_replaced(
    gateway: Gateway, client: DeltaClient, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear, heard = gateway.server._hear_witness, asyncio.Event()

    async def hear_and_tell(connection: str, reader: asyncio.StreamReader) -> None:
        heard.set()
        await hear(connection, reader)

    monkeypatch.setattr(gateway.server, "_hear_witness", hear_and_tell)
    await client.connect(gateway.address)
    await asyncio.wait_for(heard.wait(), SECONDS)
    heard.clear()
    number = client._witness._process.pid
    os.kill(number, sent)
    os.waitid(os.P_PID, number, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    client.report(REPORT)
    assert client._witness._process.pid != number
    async with asyncio.timeout(SECONDS):
        while not heard.is_set():  # it starts
            client.report(REPORT)
            await gateway.turns(1)
    await gateway.turns(2 * SILENT_TURNS)  # in which the client says nothing
    assert (gateway.silent, len(gateway.server.reports())) == ([], 1)


async def test_a_replica_is_connected_where_its_witness_cannot_be_started_yet(
    gateway: Gateway, client: DeltaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise BlockingIOError("as many processes run as may")

    with monkeypatch.context() as patch:
        patch.setattr(witness, "_start", fails)
        name = await client.connect(gateway.address)
        client.report(REPORT)
    assert gateway.server.is_connected(name) and client._witness._process is None
    client.report(REPORT)
    assert client._witness._process is not None


async def test_without_a_witness_silence_alone_counts(gateway: Gateway, client: DeltaClient) -> None:
    await client.connect(gateway.address)
    client.report(REPORT)
    client._witness.close()
    await asyncio.wait_for(gateway.gave_up.wait(), SECONDS)
    assert gateway.silent == [os.getpid()]


async def test_a_witness_without_the_token_is_not_heard(gateway: Gateway, client: DeltaClient) -> None:
    name = await client.connect(gateway.address)
    client.report(REPORT)
    client._witness.close()
    reader, writer = await asyncio.open_connection(gateway.address.host, gateway.address.port)
    hello = bytes(TOKEN_BYTES) + bytes.fromhex(name) + OF_A_WITNESS
    writer.write(len(hello).to_bytes(4) + hello + bytes(4))
    assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    writer.close()
    await writer.wait_closed()
