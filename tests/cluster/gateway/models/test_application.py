"""Models that join a gateway which serves others already."""

import asyncio
from typing import Any

import pytest

from cluster.api.errors import Unavailable
from cluster.api.models.model import Model
from cluster.gateway.gateway import Gateway
from cluster.gateway.models.application import ServedApplication
from cluster.gateway.models.served import Served
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.monitoring.watch import Watcher
from cluster.gateway.options import GatewayOptions, ModelOptions
from cluster.metrics.ray_export import COLLECTS
from cluster.replica.delta_channel.messages import GatewayAddress

OPTIONS = GatewayOptions(
    models=(ModelOptions("first"), ModelOptions("second")),
    max_attempts=1,
    patience=1,
    max_queue_seconds=0,
    stream_resume=False,
    stored_response_seconds=0,
)


class Engines:
    """Of which none connects."""

    async def introduce(self, gateway: GatewayAddress, connected: set[str]) -> bool:
        return True

    async def probe(self) -> list[str]:
        return []


def served(name: str) -> Served:
    engines: Any = Engines()
    observers = Observers(Watcher(name))
    gateway = Gateway(engines, max_attempts=1, patience=1, observers=observers)
    return Served(Model(name=name, max_model_len=64, vocab_size=8), gateway, observers, None)


async def test_a_model_joins_once_it_has_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COLLECTS, "0")
    has_engine = asyncio.Event()

    async def make() -> Served:
        await has_engine.wait()
        return served("first")

    application = ServedApplication([served("second")], [asyncio.create_task(make())], OPTIONS)
    await application.start()
    try:
        assert [each.model.name for each in application.models] == ["second"]
        assert application.models["second"].service is application.served[0].gateway
        with pytest.raises(Unavailable, match="The model first has no engine yet"):
            application.models.find({})
        has_engine.set()
        await application.wait_for_all()
        assert [each.model.name for each in application.models] == ["first", "second"]
        assert application.models.find({}) is application.served[1].model
    finally:
        for each in application.served:
            await each.gateway.close()
