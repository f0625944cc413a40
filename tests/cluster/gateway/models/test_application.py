"""Models that join a gateway which serves others already."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from cluster.api.errors import Unavailable
from cluster.api.models.model import Model
from cluster.gateway.adapters import loading as adapter_loading
from cluster.gateway.adapters.loading import AdapterLoading
from cluster.gateway.adapters.store import Change
from cluster.gateway.gateway import Gateway
from cluster.gateway.models import joining
from cluster.gateway.models.application import ServedApplication
from cluster.gateway.models.joining import Joining
from cluster.gateway.models.served import Served
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.monitoring.watch import Watcher
from cluster.gateway.options import GatewayOptions, ModelOptions
from cluster.metrics.ray_export import COLLECTS
from cluster.replica.delta_channel.messages import GatewayAddress
from engine.request import Adapter

OPTIONS = GatewayOptions(
    models=(ModelOptions("first", "/first"), ModelOptions("second", "/second")),
    max_attempts=1,
    patience=1,
    max_queue_seconds=0,
    stream_resume=False,
    stored_response_seconds=0,
    num_store_shards=1,
)


class Engines:
    """Of which none connects."""

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        return True

    async def probe(self) -> list[str]:
        return []


class Store:
    """Of adapters, on a head that does not answer at first."""

    def __init__(self) -> None:
        self.fails = 2

    async def read(self) -> dict[str, Change]:
        if self.fails:
            self.fails -= 1
            raise Unavailable("Ray's head does not answer now", code="not_ready", retry_after=1)
        return {"mine": Change(Adapter("mine", "/adapters/mine", "00", 8))}


def served(name: str, store: Store | None = None) -> Served:
    engines: Any = Engines()
    observers = Observers(Watcher(name))
    gateway = Gateway(engines, max_attempts=1, patience=1, observers=observers)
    model = Model(name=name, max_model_len=64, vocab_size=8)
    unused: Any = None
    loading = None if store is None else AdapterLoading(model.adapters, unused, store, unused, unused)  # type: ignore[arg-type]
    return Served(model, gateway, observers, loading)


def told_engines(application: ServedApplication) -> dict[str, float]:
    """How many each model has, by the figures."""
    (family,) = [each for each in application.gateways.figures().collect() if each.name == "squadron:engines"]
    assert len({sample.labels["model_name"] for sample in family.samples}) == len(family.samples)
    return {sample.labels["model_name"]: sample.value for sample in family.samples}


@asynccontextmanager
async def started(application: ServedApplication) -> AsyncIterator[None]:
    await application.start()
    try:
        yield
    finally:
        for each in application.served:
            await each.gateway.close()


async def test_a_model_joins_once_it_has_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COLLECTS, "0")
    has_engine = asyncio.Event()

    async def make() -> Served:
        await has_engine.wait()
        return served("first")

    application = ServedApplication([served("second")], [Joining(make)], OPTIONS)
    async with started(application):
        assert [each.model.name for each in application.models] == ["second"]
        assert application.models["second"].service is application.served[0].gateway
        with pytest.raises(Unavailable, match="The model first has no engine yet"):
            application.models.find({})
        assert told_engines(application) == {"first": 0, "second": 0}  # an alert has to see that there is none
        has_engine.set()
        await application.wait_for_all()
        assert told_engines(application) == {"first": 0, "second": 0}
        assert [each.model.name for each in application.models] == ["first", "second"]
        assert application.models.find({}) is application.served[1].model


async def test_a_model_joins_though_nobody_tells_its_adapters_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COLLECTS, "0")
    monkeypatch.setattr(adapter_loading, "BEGIN_SECONDS", 0.0)

    async def make() -> Served:
        return served("second", Store())

    application = ServedApplication([served("first", Store())], [Joining(make)], OPTIONS)
    async with started(application):
        await asyncio.wait_for(application.wait_for_all(), 10)
        assert {each.model.name: [one.name for one in each.model.adapters] for each in application.models} == {
            "first": ["mine"],
            "second": ["mine"],
        }


async def test_a_model_joins_though_another_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that one, too, once it no longer fails."""
    monkeypatch.setenv(COLLECTS, "0")
    monkeypatch.setattr(joining, "AGAIN_SECONDS", 0.0)
    may_work = asyncio.Event()

    async def fail() -> Served:
        if not may_work.is_set():
            raise RuntimeError("unforeseen")
        return served("second")

    async def make() -> Served:
        return served("third")

    names = ("first", "second", "third")
    options = replace(OPTIONS, models=tuple(ModelOptions(name, f"/{name}") for name in names))
    application = ServedApplication([served("first")], [Joining(fail), Joining(make)], options)
    async with started(application):
        async with asyncio.timeout(10):
            while len(application.served) < 2:
                await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(application.wait_for_all(), 0)
            may_work.set()
            await application.wait_for_all()
        assert [each.model.name for each in application.models] == [*names]


async def test_a_gateway_that_could_not_start_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one takes its place."""
    monkeypatch.setenv(COLLECTS, "0")
    monkeypatch.setattr(joining, "AGAIN_SECONDS", 0.0)
    made: list[Served] = []
    closed: list[Gateway] = []

    class Late(Store):
        async def read(self) -> dict[str, Change]:
            if len(made) == 1:
                raise RuntimeError("unforeseen")
            return {}

    async def make() -> Served:
        made.append(served("second", Late()))
        return made[-1]

    async def close(gateway: Gateway) -> None:
        closed.append(gateway)
        await really_close(gateway)

    really_close = Gateway.close
    monkeypatch.setattr(Gateway, "close", close)
    application = ServedApplication([served("first")], [Joining(make)], OPTIONS)
    async with started(application):
        await asyncio.wait_for(application.wait_for_all(), 10)
        assert application.models["second"].service is made[1].gateway
        assert closed == [made[0].gateway]
