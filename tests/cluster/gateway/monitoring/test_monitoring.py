"""What gateways count, over real sockets with engine replicas that do as told."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.gateway.gateway import Gateway
from cluster.gateway.monitoring.monitoring import Monitoring
from cluster.gateway.requests.journal import Journal
from cluster.metrics.counters import Counters
from cluster.metrics.ledger import Ledger
from cluster.replica.delta_channel.client import DeltaClient
from engine.errors import EngineDead, InvalidRequest
from engine.outputs import CompletionOutput, RequestOutput
from engine.request import Request, Share
from engine.sampling_params import SamplingParams
from tests.cluster.gateway.monitoring.test_engine_figures import report

SECONDS = 30


def values(text: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By a sample's name, then by its labels without the model's name."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "model_name"))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def ended(journal_of: Request, error: BaseException | None = None, *, tokens: int = 3) -> Counters:
    """The counters after that request has ended."""
    monitoring = Monitoring("m", counters := Counters(Monitoring()._counters.bounds))
    journal = Journal("r", journal_of)
    if tokens:
        output = CompletionOutput(0, "x", list(range(tokens)), finish_reason=None if error else "stop")
        journal.accept(RequestOutput("r", 0, [1, 2], [output], error is None, num_cached_tokens=1), "source")
    monitoring.ended(journal, error)
    return counters


REQUEST = Request("r", [1, 2], SamplingParams(max_tokens=8), share=Share("alice"))


def test_a_request_is_observed_once_when_it_has_ended():
    figures = ended(REQUEST).figures()
    assert figures["vllm:request_success", ("stop",)] == 1
    assert figures["squadron:key_requests", ("alice",)] == 1
    assert figures["squadron:key_tokens", ("alice", "generation")] == 3
    assert figures["squadron:key_tokens", ("alice", "prompt")] == 2
    for name, total in (
        ("vllm:request_generation_tokens", 3),
        ("vllm:request_prompt_tokens", 2),
        ("vllm:request_prefill_kv_computed_tokens", 1),
        ("vllm:request_params_n", 1),
    ):
        histogram = figures[name, ()]
        assert isinstance(histogram, list) and (sum(histogram[:-1]), histogram[-1]) == (1, total)


@pytest.mark.parametrize(
    ("error", "tokens", "reason"),
    [
        (EngineDead("no engine"), 0, "error"),
        (InvalidRequest("late"), 3, "error"),
        (InvalidRequest("refused"), 0, None),
        (GeneratorExit(), 3, "abort"),
        (asyncio.CancelledError(), 0, "abort"),
    ],
)
def test_how_a_request_ends_is_counted_and_a_refused_one_is_none(error, tokens, reason):
    figures = ended(REQUEST, error, tokens=tokens).figures()
    counted = {labels[0] for (name, labels), value in figures.items() if name == "vllm:request_success" and value}
    assert counted == ({reason} if reason else set())
    latencies = figures["vllm:e2e_request_latency_seconds", ()]
    assert isinstance(latencies, list) and sum(latencies) == 0


async def test_what_a_dead_replica_and_a_dead_gateway_counted_stays_in_the_sums():
    nobody: Any = SimpleNamespace(introduce=_nothing)
    gateways = [Gateway(nobody, max_attempts=1, patience=1) for _ in range(2)]
    addresses = []
    for gateway in gateways:
        await gateway.start("127.0.0.1")
        addresses.append(gateway._address)
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
        gateways[0]._monitoring._counters.count("squadron:http_requests", "/health", "GET", "200", by=3)
        newcomer = Gateway(nobody, max_attempts=1, patience=1)
        newcomer.exchange(gateways[0].exchange(Ledger()))  # which then dies
        told = values(await newcomer.metrics())
        assert told["squadron:steps_total"][whole] == 12
        assert sum(told["squadron:http_requests_total"].values()) == 3
    finally:
        await second.close()
        for gateway in gateways:
            await gateway.close()


async def _nothing(*_: Any) -> bool:
    return True


async def _until(gateway: Gateway, series: tuple[str, tuple[tuple[str, str], ...]], value: float) -> None:
    name, labels = series
    while values(await gateway.metrics())[name][labels] != value:
        await asyncio.sleep(0)
