"""When a gateway has replicas connect to it: only while one that Serve runs is not connected."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.gateway.engines.serve_engines import ServeEngines
from cluster.gateway.gateway import Gateway
from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import GatewayAddress
from tests.cluster.gateway.test_gateway import report

SECONDS = 120  # more than anything here takes
NUM_TURNS = 10


class Handle:
    """Serve's handle of the replicas that run; those that are told to connect do so, and report."""

    app_name, deployment_name = "squadron", "EngineDeployment"

    def __init__(self, *names: str) -> None:
        self.replicas = {name: DeltaClient(on_lost=lambda _: None) for name in names}
        self.num_broadcasts = 0
        self.num_turns = 0

    @property
    def _router(self) -> Any:
        """Looked at once a turn, where Serve keeps the replicas that it runs."""
        self.num_turns += 1
        running = [SimpleNamespace(to_full_id_str=lambda name=name: name) for name in self.replicas]
        return SimpleNamespace(_asyncio_router=SimpleNamespace(_request_router=SimpleNamespace(curr_replicas=running)))

    def broadcast(self, method: str, gateway: GatewayAddress) -> Any:
        assert method == "connect"
        self.num_broadcasts += 1
        return SimpleNamespace(_fetch_replica_results_async=lambda: self._results(gateway))

    async def _results(self, gateway: GatewayAddress) -> list[Any]:
        return [
            SimpleNamespace(get_async=lambda each=each: self._connect(*each, gateway)) for each in self.replicas.items()
        ]

    async def _connect(self, replica: str, client: DeltaClient, gateway: GatewayAddress) -> str:
        name = await client.connect(gateway)
        client.report(report(replica))
        return name


class SilentHandle(Handle):
    """Of a Serve that keeps its knowledge elsewhere."""

    @property
    def _router(self) -> Any:
        self.num_turns += 1
        return None


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    monkeypatch.setattr("cluster.gateway.engines.connections.INTRODUCTION_SECONDS", 0.01)
    started: list[tuple[Gateway, Handle]] = []

    async def start_one(handle: Handle) -> Gateway:
        gateway = Gateway(ServeEngines(handle, "token"), max_attempts=1, patience=SECONDS)
        started.append((gateway, handle))
        await gateway.start("127.0.0.1")
        return gateway

    yield start_one
    for gateway, handle in started:
        await gateway.close()  # first: it would have those that are gone connect again
        for client in handle.replicas.values():
            await client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0)


async def until_connected(gateway: Gateway, handle: Handle) -> None:
    await until(lambda: {each.replica for each in gateway._connections._server.reports()} == set(handle.replicas))


async def num_broadcasts_in_turns(handle: Handle) -> int:
    before, end = handle.num_broadcasts, handle.num_turns + NUM_TURNS
    await until(lambda: handle.num_turns >= end)
    return handle.num_broadcasts - before


async def test_replicas_that_are_connected_are_left_alone(start) -> None:
    handle = Handle("a", "b")
    gateway = await start(handle)
    await until_connected(gateway, handle)
    assert handle.num_broadcasts > 0
    assert await num_broadcasts_in_turns(handle) == 0


async def test_a_replica_that_comes_later_is_introduced(start) -> None:
    handle = Handle()
    gateway = await start(handle)
    for name in ("a", "b"):
        handle.replicas[name] = DeltaClient(on_lost=lambda _: None)
        await until_connected(gateway, handle)
        assert await num_broadcasts_in_turns(handle) == 0


async def test_a_replica_whose_connection_broke_is_introduced_again(start) -> None:
    handle = Handle("a", "b")
    gateway = await start(handle)
    await until_connected(gateway, handle)
    connections = gateway._connections._server._connections
    broken = next(name for name, incoming in connections.items() if incoming.report.replica == "a")
    connections[broken].writer.transport.abort()
    await until(lambda: broken not in connections)
    await until_connected(gateway, handle)
    assert await num_broadcasts_in_turns(handle) == 0


async def test_where_serve_does_not_tell_which_replicas_run_all_are_asked_each_turn(start) -> None:
    handle = SilentHandle("a")
    gateway = await start(handle)
    await until_connected(gateway, handle)
    assert await num_broadcasts_in_turns(handle) >= NUM_TURNS - 1
