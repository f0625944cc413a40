"""What gateways are told of an engine replica: a step that does not end, what the engine says."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.replica import condition
from cluster.replica.condition import STUCK_SECONDS, Condition
from engine.admission.queue_limits import Load, QueueLimits
from engine.records.stats import EngineStats


class Engine:
    """As far as its condition shows."""

    arithmetic: Mapping[str, str] = {"backend": "cpu"}
    queue_limits = QueueLimits(Load(4, 64), num_places=2, block_size=16)

    def __init__(self) -> None:
        self.now = EngineStats(**dict.fromkeys(EngineStats.__slots__, 0))
        self.says: str | None = None

    def stats(self) -> EngineStats:
        return self.now

    def problem(self) -> str | None:
        return self.says


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(condition, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_step_that_does_not_end(clock: SimpleNamespace) -> None:
    engine: Any = Engine()
    replica = Condition(engine, "replica")
    clock.now += 2 * STUCK_SECONDS
    assert replica.look().problem is None  # nobody waits
    engine.now = replace(engine.now, num_requests_running=1)
    clock.now += STUCK_SECONDS
    assert replica.look().problem is None
    clock.now += 1
    assert replica.look().problem == "no step has ended for 11 s"
    engine.now = replace(engine.now, num_steps=1)
    assert replica.look().problem is None


def test_what_the_engine_says_and_what_the_replica_knows(clock: SimpleNamespace) -> None:
    engine: Any = Engine()
    replica = Condition(engine, "replica")
    engine.says = "workers are restarting"
    report = replica.look()
    assert (report.replica, report.problem, report.arithmetic) == ("replica", engine.says, {"backend": "cpu"})
    assert report.fingerprint == replica.fingerprint
    replica.is_stopping = True
    assert replica.look().problem == "it is told to stop"
