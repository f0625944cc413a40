"""The figures of an application, over real sockets with engine replicas that do as told."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.gateway.gateway import Gateway
from cluster.gateway.monitoring.monitoring import Monitoring
from cluster.metrics.counters import Counters
from cluster.metrics.ledger import NUM_FIGURES_KEPT, Ledger
from cluster.replica.delta_channel.client import DeltaClient
from tests.cluster.gateway.monitoring.test_engine_figures import report

SECONDS = 120


def values(text: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By a sample's name, then by its labels without the model's name."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "model_name"))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def test_what_a_dead_replica_and_a_dead_gateway_counted_stays_in_the_sums():
    nobody: Any = SimpleNamespace(introduce=_nothing)
    gateways = [Gateway(nobody, max_attempts=1, patience=1) for _ in range(2)]
    addresses = []
    for gateway in gateways:
        await gateway.start("127.0.0.1")
        addresses.append(gateway._connections.address)
    first, second = DeltaClient(lambda _: None), DeltaClient(lambda _: None)
    try:
        for client, name, num_steps in ((first, "first", 5), (second, "second", 7)):
            for address in addresses:
                await client.connect(address)
            client.report(report(name, num_steps))
        async with asyncio.timeout(SECONDS):
            for gateway in gateways:
                await _until(gateway, ("squadron:engines", ()), 2)
            await first.close()
            for gateway in gateways:
                await _until(gateway, ("squadron:engines", ()), 1)
        whole = (("engine", "all"),)
        for gateway in gateways:
            assert values(await gateway.metrics())["squadron:steps_total"][whole] == 12
        gateways[0]._observers.figures.counters.count("squadron:http_requests", "", "/health", "GET", "200", by=3)
        newcomer = Gateway(nobody, max_attempts=1, patience=1)
        newcomer.monitoring.exchange(gateways[0].monitoring.exchange(Ledger()))  # which then dies
        told = values(await newcomer.metrics())
        assert told["squadron:steps_total"][whole] == 12
        assert sum(told["squadron:http_requests_total"].values()) == 3
    finally:
        await second.close()
        for gateway in gateways:
            await gateway.close()


def taken_for_gone() -> tuple[Monitoring, Monitoring]:
    """A gateway that had counted 3 when another one reached it last, and that one."""
    cut_off, other = [Monitoring("one", Counters({}), list, list, counts_process=False) for _ in range(2)]
    cut_off._counters.count("squadron:steps", by=3)
    other.exchange(cut_off.exchange(Ledger()))
    (name,) = other._ledger.entries.keys() - {other._name}
    other._ledger.merge(name)
    return cut_off, other


def test_a_gateway_that_others_take_for_gone_counts_on() -> None:
    """As one that they could not reach for long, and which was asked for its figures meanwhile."""
    cut_off, other = taken_for_gone()
    cut_off._counters.count("squadron:steps", by=2)
    cut_off.exchange(Ledger())
    for expected in (5, 9, 13):
        for each in (cut_off, other):
            each.exchange((other if each is cut_off else cut_off).exchange(Ledger()))
            assert each._ledger.total()["squadron:steps", ()] == expected
        cut_off._counters.count("squadron:steps", by=4)


@pytest.mark.parametrize("starts", [False, True])
async def test_whether_there_may_be_no_engine_is_told(starts: bool) -> None:
    nobody: Any = SimpleNamespace(introduce=_nothing)
    told = values(await Gateway(nobody, max_attempts=1, patience=1, starts_for_requests=starts).metrics())
    assert told["squadron:starts_for_requests"] == {(): float(starts)}


def test_a_gateway_whose_merged_figures_are_forgotten_counts_on_under_another_name() -> None:
    cut_off, other = taken_for_gone()
    for number in range(NUM_FIGURES_KEPT):
        other._ledger.note(str(number), 0.0, {})
        other._ledger.merge(str(number))
    for expected in (3, 7, 11):
        cut_off.exchange(other.exchange(Ledger()))
        other.exchange(cut_off.exchange(Ledger()))
        assert other._ledger.total() == cut_off._ledger.total() == {("squadron:steps", ()): expected}
        cut_off._counters.count("squadron:steps", by=4)


def test_an_engine_replica_that_was_taken_for_gone_is_counted_when_it_is_back() -> None:
    told = report("one", 5)
    gateways = [Monitoring("m", Counters({}), list, lambda: [told], counts_process=False) for _ in range(2)]
    for each, another in (gateways, gateways[::-1]):
        each.exchange(another.exchange(Ledger()))
    gateways[0]._ledger.merge("one")
    for num_steps in (8, 9):
        told = report("one", num_steps)
        for each, another in (gateways, gateways[::-1]):
            each.exchange(another.exchange(Ledger()))
            assert each._ledger.total()["squadron:steps", ()] == num_steps
    gateways[1]._ledger.merge("one")
    told = report("one", 10)
    for each, another in (gateways, gateways[::-1]):
        each.exchange(another.exchange(Ledger()))
        assert each._ledger.total()["squadron:steps", ()] == 10


async def _nothing(*_: Any) -> bool:
    return True


async def _until(gateway: Gateway, series: tuple[str, tuple[tuple[str, str], ...]], value: float) -> None:
    name, labels = series
    while values(await gateway.metrics())[name][labels] != value:
        await asyncio.sleep(0)
