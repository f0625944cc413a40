"""What gateways are told of an engine replica: a step that does not end, what the engine says."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.replica import condition
from cluster.replica.condition import STUCK_SECONDS, Condition
from cluster.replica.delta_channel.messages import AdaptersInUse
from cluster.replica.refusals.refusal import EngineStopping
from cluster.workers.steps.deadline import FIRST_SECONDS
from engine.admission.queue_limits import Load, QueueLimits
from engine.checkpoint.fingerprint import fingerprint
from engine.config import EngineConfig
from engine.errors import EngineDead, FingerprintChanged, Overloaded
from engine.records.measures import Measured
from engine.records.stats import EngineStats
from engine.request import Request, Resume
from engine.sampling_params import SamplingParams

DEMO = Path(__file__).resolve().parents[3] / "configs" / "demo"
REQUEST = Request("r", [1], SamplingParams())


class Engine:
    """As far as its condition shows."""

    arithmetic: Mapping[str, str] = {"backend": "cpu"}
    fingerprint = fingerprint(arithmetic)
    weights = None
    is_frozen = False
    num_cleared = 0
    sleep_level = 2
    adapters = (["b"], ["a", "c"])
    config = EngineConfig.create(model=str(DEMO))

    def __init__(self) -> None:
        self.observer = self
        self.now = EngineStats(**dict.fromkeys(EngineStats.__slots__, 0))
        self.says: str | None = None
        self.dead: str | None = None
        self.nodes: list[str] = []
        self.seconds_in_flight: float | None = 0.0

    def worker_nodes(self) -> list[str]:
        return self.nodes

    def stats(self) -> EngineStats:
        return self.now

    def queue_limits(self) -> QueueLimits:
        return QueueLimits(Load(4, 64), num_places=2, block_size=16)

    def problem(self) -> str | None:
        return self.says

    def measured(self) -> Measured:
        return Measured(num_tokens=5)

    def check_health(self) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)

    def check_queue(self, request: Request) -> None:
        if request.id == "one too many":
            raise Overloaded("1 request waits")


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


def test_a_step_that_is_expected_to_take_long_is_not_stuck(clock: SimpleNamespace) -> None:
    engine: Any = Engine()
    replica = Condition(engine, "replica")
    engine.now, engine.seconds_in_flight = replace(engine.now, num_requests_running=1), 35.0
    replica.look()
    clock.now += 79
    assert replica.look().problem is None
    clock.now += 2
    assert replica.look().problem == "no step has ended for 81 s"


def test_a_first_step_may_take_as_long_as_workers_have_for_it(clock: SimpleNamespace) -> None:
    """A chunk of a large model's first prompt, on a slow machine, takes more than a minute."""
    engine: Any = Engine()
    replica = Condition(engine, "replica")
    engine.now, engine.seconds_in_flight = replace(engine.now, num_requests_running=1), None
    replica.look()
    clock.now += FIRST_SECONDS - 1
    assert replica.look().problem is None
    clock.now += 2
    assert replica.look().problem == "no step has ended for 601 s"


def test_what_the_engine_says_and_what_the_replica_knows(clock: SimpleNamespace) -> None:
    engine: Any = Engine()
    replica = Condition(engine, "replica")
    engine.says = "workers are restarting"
    report = replica.look()
    assert (report.replica, report.problem, report.arithmetic) == ("replica", engine.says, {"backend": "cpu"})
    assert report.fingerprint == replica.fingerprint
    assert report.totals.measured.num_tokens == 5 and report.totals.block_bytes > 0
    replica.is_stopping = True
    assert replica.look().problem == "it is told to stop"


def test_a_replica_that_leaves_is_well_until_it_ends(clock: SimpleNamespace) -> None:
    engine: Any = Engine()
    replica = Condition(engine, "replica")
    replica.is_leaving = True
    replica.check(REQUEST)
    report = replica.look()
    assert (report.problem, report.is_leaving) == (None, True)
    replica.is_stopping = True
    assert not replica.look().is_leaving


def test_what_a_replica_does_not_take() -> None:
    engine: Any = Engine()
    replica = Condition(engine, "replica")
    replica.check(REQUEST)
    replica.check(replace(REQUEST, resume=Resume(1, [[5]], [0.0], replica.fingerprint)))
    with pytest.raises(FingerprintChanged, match="its tokens have the fingerprint fp_other, and this engine has fp_"):
        replica.check(replace(REQUEST, resume=Resume(1, [[5]], [0.0], "fp_other")))
    with pytest.raises(Overloaded, match="1 request waits"):
        replica.check(replace(REQUEST, id="one too many"))
    engine.dead = "no workers are left"
    with pytest.raises(EngineDead, match="no workers are left"):
        replica.check(REQUEST)
    replica.is_stopping = True
    with pytest.raises(EngineStopping):
        replica.check(REQUEST)


def test_blocks_are_served_while_all_ranks_write_them_where_the_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition, "node_id", lambda: "here")
    engine = Engine()
    own = Condition(engine, "replica")  # type: ignore[arg-type]
    assert own.look().blocks_at is None, "it has no server"
    own.serves_at = "10.0.0.2:7000"
    for nodes, told in (([], own.serves_at), (["here"] * 2, own.serves_at), (["here", "there"], None), (["x"], None)):
        engine.nodes = nodes
        assert own.look().blocks_at == told


def test_how_the_engine_is_configured_is_told(clock: SimpleNamespace) -> None:
    engine: Any = Engine()
    told = Condition(engine, "replica").look()
    assert (told.sleep_level, told.adapters, told.cache["block_size"]) == (2, None, "16")
    assert not told.is_frozen
    engine.config, engine.is_frozen = EngineConfig.create(model=str(DEMO), enable_lora=True, max_loras=3), True
    told = Condition(engine, "replica").look()
    assert told.adapters == AdaptersInUse(["b"], ["a", "c"], 3) and told.is_frozen
