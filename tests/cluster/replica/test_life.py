"""A replica that is told to end does, whatever fails while it hands over."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RaySystemError

from cluster.replica.life import Life
from engine.config import EngineConfig


class Departure:
    """One that Ray's head does not answer."""

    left: float | None = None

    async def hold(self) -> None:
        raise RaySystemError("the GCS does not answer")

    def leave(self, seconds: float) -> None:
        self.left = seconds


async def test_a_replica_that_cannot_hand_over_leaves(caplog: pytest.LogCaptureFixture) -> None:
    observer = SimpleNamespace(stats=lambda: SimpleNamespace(num_gpu_blocks=1))
    engine = SimpleNamespace(config=EngineConfig.create(model="configs/demo"), observer=observer)
    requests, condition = SimpleNamespace(report=lambda: None), SimpleNamespace(is_stopping=False)
    replica: Any = SimpleNamespace(name="", engine=engine, requests=requests, condition=condition)
    departure: Any = Departure()
    life = Life(replica, patience=1.0, end_seconds=7.0)
    await life._leave(departure)
    life.end()
    assert departure.left == 7.0
    assert "the GCS does not answer" in caplog.text
