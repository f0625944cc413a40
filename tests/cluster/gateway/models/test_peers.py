"""Gateway replicas tell each other their figures, by model."""

from types import SimpleNamespace
from typing import Any

from cluster.gateway.gateway import Gateway
from cluster.gateway.models.peers import PeerGateways
from cluster.gateway.monitoring.observers import Observers
from cluster.gateway.monitoring.watch import Watcher
from tests.cluster.gateway.monitoring.test_monitoring import values

NOBODY: Any = SimpleNamespace()
COUNTED = ("/health", "GET", "200")


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
