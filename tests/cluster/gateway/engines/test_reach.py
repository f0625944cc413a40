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
        self.frozen: set[str] = set()  # these run, and never answer
        self.broken: set[str] = set()  # these run, and cannot be called
        self.told: list[str] = []  # names of replicas, each time that one was told to connect
        self.num_turns = 0

    @property
    def _router(self) -> Any:
        """Looked at once a turn, where Serve keeps the replicas that it runs."""
        self.num_turns += 1
        names = [*self.replicas, *self.frozen, *self.broken]
        running = [SimpleNamespace(to_full_id_str=lambda name=name: name) for name in names]
        return SimpleNamespace(_asyncio_router=SimpleNamespace(_request_router=SimpleNamespace(curr_replicas=running)))

    async def connect(self, name: str, gateway: GatewayAddress) -> None:
        """See `connect_replica`."""
        self.told.append(name)
        if name in self.broken:
            raise ValueError("it is not there")
        if name in self.frozen:
            await asyncio.Event().wait()
        await self.replicas[name].connect(gateway)
        self.replicas[name].report(report(name))


class SilentHandle(Handle):
    """Of a Serve that keeps its knowledge elsewhere."""

    @property
    def _router(self) -> Any:
        self.num_turns += 1
        return None

    def broadcast(self, method: str, gateway: GatewayAddress) -> Any:
        assert method == "connect"
        return SimpleNamespace(_fetch_replica_results_async=lambda: self._results(gateway))

    async def _results(self, gateway: GatewayAddress) -> list[Any]:
        names = [*self.replicas, *self.broken]
        return [SimpleNamespace(get_async=lambda name=name: self.connect(name, gateway)) for name in names]


class EnginesOf(ServeEngines):
    """Whose number Serve's controller tells, whatever it tells this process."""

    def __init__(self, handle: Handle) -> None:
        told: Any = handle
        super().__init__(told, "run", "/model")
        self._handle = handle

    async def num_running(self) -> int:
        return len(self._handle.replicas) + len(self._handle.broken)


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    monkeypatch.setattr("cluster.gateway.engines.connections.INTRODUCTION_SECONDS", 0.01)
    for module in ("reach", "serve_engines"):
        monkeypatch.setattr(f"cluster.gateway.engines.{module}.CONNECT_SECONDS", 0.05)
    started: list[tuple[Gateway, Handle]] = []

    async def start_one(handle: Handle) -> Gateway:
        monkeypatch.setattr("cluster.gateway.engines.reach.connect_replica", handle.connect)
        gateway = Gateway(EnginesOf(handle), max_attempts=1, patience=SECONDS)
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


async def told_in_turns(handle: Handle, num_turns: int = NUM_TURNS) -> list[str]:
    before, end = len(handle.told), handle.num_turns + num_turns
    await until(lambda: handle.num_turns >= end)
    return handle.told[before:]


async def test_replicas_that_are_connected_are_left_alone(start) -> None:
    handle = Handle("a", "b")
    gateway = await start(handle)
    await until_connected(gateway, handle)
    assert sorted(handle.told) == ["a", "b"]
    assert await told_in_turns(handle) == []


async def test_a_replica_that_comes_later_is_introduced(start) -> None:
    handle = Handle()
    gateway = await start(handle)
    for name in ("a", "b"):
        handle.replicas[name] = DeltaClient(on_lost=lambda _: None)
        await until_connected(gateway, handle)
        assert await told_in_turns(handle) == []


async def test_a_replica_whose_connection_broke_is_introduced_again(start) -> None:
    handle = Handle("a", "b")
    gateway = await start(handle)
    await until_connected(gateway, handle)
    connections = gateway._connections._server._connections
    broken = next(name for name, incoming in connections.items() if incoming.report.replica == "a")
    connections[broken].writer.transport.abort()
    await until(lambda: broken not in connections)
    await until_connected(gateway, handle)
    assert await told_in_turns(handle) == []


async def test_one_that_never_answers_costs_the_others_nothing_and_is_called_once(start) -> None:
    """Its first call is still open."""
    handle = Handle("a", "b")
    handle.frozen = {"frozen"}
    gateway = await start(handle)
    await until_connected(gateway, handle)
    assert await told_in_turns(handle) == []
    assert sorted(handle.told) == ["a", "b", "frozen"]


@pytest.mark.parametrize("kind", [Handle, SilentHandle])
async def test_one_that_cannot_connect_is_called_more_and_more_rarely(start, kind: type[Handle]) -> None:
    handle = kind("a")
    gateway = await start(handle)
    await until_connected(gateway, handle)
    handle.broken = {"broken"}
    told = await told_in_turns(handle, 100)
    assert 2 < told.count("broken") < 10
    assert set(told) == ({"broken"} if kind is Handle else {"a", "broken"})  # who sees none tells all


async def test_where_serve_does_not_tell_which_replicas_run_none_is_called_once_all_are_connected(start) -> None:
    handle = SilentHandle("a", "b")
    gateway = await start(handle)
    await until_connected(gateway, handle)
    assert await told_in_turns(handle) == []
    handle.replicas["c"] = DeltaClient(on_lost=lambda _: None)
    await until_connected(gateway, handle)
