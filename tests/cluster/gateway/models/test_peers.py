"""Gateway replicas tell each other their figures, by model."""

import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.gateway.gateway import Gateway
from cluster.gateway.models import peers
from cluster.gateway.models.peers import PeerGateways
from cluster.gateway.monitoring import monitoring
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.monitoring.watch import Watcher
from cluster.metrics.ledger import KEPT_SECONDS, Ledger
from tests.cluster.gateway.engines.test_questions import DIED, Handle
from tests.cluster.gateway.monitoring.test_monitoring import values

NOBODY: Any = SimpleNamespace()
COUNTED = ("", "/health", "GET", "200")


def replica(*models: str) -> tuple[PeerGateways, list[Observers]]:
    observers = [Observers(Watcher(model)) for model in models]
    return PeerGateways([Gateway(NOBODY, max_attempts=1, patience=1, observers=each) for each in observers]), observers


def count(observers: Observers, by: int) -> None:
    observers.figures.counters.count("squadron:http_requests", *COUNTED, by=by)


async def test_a_replica_with_other_models_tells_of_those_that_both_have() -> None:
    """As one that is replaced when the application gets another model."""
    old, (of_one,) = replica("one")
    new, (of_two, also_of_one) = replica("two", "one")
    for observers, by in ((of_one, 3), (of_two, 5), (also_of_one, 7)):
        count(observers, by)
    told = old.exchange(new.exchange({}))
    assert list(told) == ["one"]
    new.exchange(told)
    figures = {gateway.monitoring.model_name: gateway for gateway in (*old._gateways, *new._gateways)}
    counted = {name: values(await gateway.metrics()) for name, gateway in figures.items()}
    totals = {name: sum(each["squadron:http_requests_total"].values()) for name, each in counted.items()}
    assert totals == {"one": 10, "two": 5}


@pytest.mark.parametrize("answers", [True, False])
async def test_a_long_silence_between_two_scrapes_freezes_nothing(
    monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    """Of two replicas one is asked, then nobody for longer than silent processes are kept. Whether
    the other answers then or is too busy, what it counts later is told.
    """
    (asked, (own,)), (other, (of_other,)) = replica("one"), replica("one")
    clock = SimpleNamespace(now=1000.0, answers=True)

    async def ask(replicas: Any, method: str, ledgers: dict[str, Ledger]) -> list[dict[str, Ledger]]:
        sent = pickle.loads(pickle.dumps(ledgers))
        return [asked.exchange(sent), pickle.loads(pickle.dumps(other.exchange(sent)))] if clock.answers else []

    monkeypatch.setattr(peers, "_all_replicas", lambda: None)
    monkeypatch.setattr(peers, "running_replicas", lambda replicas: {"asked", "other"})
    monkeypatch.setattr(peers, "ask_those_that_answer", ask)
    times = SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.now, process_time=time.process_time)
    monkeypatch.setattr(monitoring, "time", times)

    async def total() -> float:
        clock.now += 1
        told = values(await asked.metrics())
        return sum(told["squadron:http_requests_total"].values())

    for observers, by in ((own, 1), (of_other, 2)):
        count(observers, by)
    assert await total() == 3
    clock.now += 2 * KEPT_SECONDS
    clock.answers = answers
    count(of_other, 4)
    assert await total() == (7 if answers else 3)
    clock.answers = True
    count(of_other, 8)
    assert await total() == 15


class Gateways(Handle):
    """Serve's handle of the gateway replicas, one of which has just died."""

    async def results_async(self, **options: Any) -> list[Any]:
        if not options.get("return_exceptions"):
            raise DIED
        return list(self._answers)


async def test_an_abort_needs_no_answer_of_a_gateway_that_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests have ended with it."""
    gateways = Gateways(None, DIED)
    monkeypatch.setattr(peers, "_all_replicas", lambda: gateways)
    asked, _ = replica("one")
    await asked.abort_anywhere("mine")
    assert gateways.asked == ("abort_here", "mine")
