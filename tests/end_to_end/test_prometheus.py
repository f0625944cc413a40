"""A real Prometheus reads the figures of the running server: every panel of the dashboard and every
alert rule finds its series.
"""

import re
import time
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.metrics.catalog import CATALOG
from tests.end_to_end.conftest import Server
from tests.end_to_end.prometheus import OF_KEYS, SECONDS, Prometheus, needs_prometheus, panels, reading, rules

SELECTOR = re.compile(r"((?:vllm|squadron):\w+|\bup\b)(\{[^}]*\})?")
NOT_WITHOUT_KEYS = {name for name in CATALOG if name.startswith(OF_KEYS)}  # tests of those: test_keys
NOT_WITHOUT_DRAFTS = {
    name for name in CATALOG if name.startswith("vllm:spec_decode")
}  # tests of those: test_speculation
NOT_WITHOUT_PREFILL_ENGINES = {
    name for name in CATALOG if name.startswith("squadron:prefill")
}  # tests of those: test_prefill


@pytest.fixture(scope="module")
def used(server: Server) -> Server:
    """The server, after some requests."""
    with server.client() as client:
        for stream in (False, True):
            answer = client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "Count from 3 to 9."}], stream=stream
            )
            assert list(answer)
    return server


def samples(server: Server) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What /metrics tells, by name and labels."""
    answer = httpx.get(f"{server.url}/metrics", timeout=SECONDS)
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def wait_for_report(server: Server) -> None:
    """Until the gateway knows all that the engine has computed so far."""
    num_steps = server.stats()["num_steps"]
    deadline = time.monotonic() + SECONDS
    while True:
        (engine,) = httpx.get(f"{server.url}/debug/engines", timeout=SECONDS).json()["engines"]
        if engine["stats"]["num_steps"] >= num_steps:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def prometheus(used: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with reading(used.port, tmp_path_factory.mktemp("prometheus")) as prometheus:
        yield prometheus


@needs_prometheus
def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    """Those of keys need a server that has some: see test_keys."""
    asked = [(title, expression) for title, expression in panels() if OF_KEYS not in expression]
    assert [(title, expression) for title, expression in asked if not prometheus.query(expression)] == []
    assert len(asked) > 40


@needs_prometheus
def test_every_rule_is_evaluated_and_looks_at_series_that_there_are(prometheus: Prometheus) -> None:
    for name, expression in rules():
        selectors = SELECTOR.findall(expression)
        assert selectors, name
        for metric, labels in selectors:
            assert prometheus.query(metric + labels), (name, metric + labels)
    told = prometheus.evaluated_rules()
    assert {rule["name"] for rule in told} == {name for name, _ in rules()}
    assert [(rule["name"], rule["lastError"]) for rule in told if rule["health"] != "ok"] == []


def test_every_metric_is_told_and_nothing_else(used: Server) -> None:
    answer = httpx.get(f"{used.url}/metrics", timeout=SECONDS)
    told = {family.name for family in text_string_to_metric_families(answer.text)}
    assert told == CATALOG.keys() - NOT_WITHOUT_KEYS - NOT_WITHOUT_DRAFTS - NOT_WITHOUT_PREFILL_ENGINES


def test_tokens_take_the_shortcut_to_their_streams(used: Server) -> None:
    """Serve's layers pass on what it needs."""
    name = "squadron:shortcut_tokens_total", (("engine", "all"), ("model_name", "demo"))
    before = samples(used)[name]
    deadline = time.monotonic() + SECONDS
    while samples(used)[name] == before:  # tokens that all come at once on a busy machine take the long way
        assert time.monotonic() < deadline
        with used.client() as client:
            list(client.completions.create(model="demo", prompt="spell", max_tokens=64, stream=True))


def test_totals_are_those_of_the_engine_and_of_the_answers(used: Server) -> None:
    def total(name: str, **labels: str) -> float:
        wanted = {"model_name": "demo", "engine": "all"} | labels
        return now[name, tuple(sorted(wanted.items()))]

    wait_for_report(used)
    with used.client() as client:
        before = now = samples(used)
        old = {name: total(name) for name in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")}
        old_ends = total("vllm:request_success_total", finished_reason="length")
        answer = client.completions.create(model="demo", prompt="spell", max_tokens=7, n=2, temperature=1, seed=1)
        assert answer.usage is not None and answer.choices[0].finish_reason
        deadline = time.monotonic() + SECONDS
        while (
            total("vllm:generation_tokens_total") < old["vllm:generation_tokens_total"] + answer.usage.completion_tokens
        ):
            assert time.monotonic() < deadline
            now = samples(used)  # the engine reports five times a second
    assert total("vllm:generation_tokens_total") - old["vllm:generation_tokens_total"] == answer.usage.completion_tokens
    assert total("vllm:prompt_tokens_total") - old["vllm:prompt_tokens_total"] == answer.usage.prompt_tokens
    for whole in ("prompt_tokens", "prompt_tokens_cached"):
        parts = [value for (name, _), value in now.items() if name == f"vllm:{whole}_by_source_total"]
        assert len(parts) == 3 and sum(parts) == total(f"vllm:{whole}_total")
    ended = [choice.finish_reason for choice in answer.choices]
    if ended == ["length", "length"]:
        assert total("vllm:request_success_total", finished_reason="length") == old_ends + 1
    assert all(
        value >= before[series]
        for series, value in now.items()
        if series[0].endswith(("_total", "_bucket")) and series in before
    )


def test_how_the_engine_is_configured_and_what_it_does_is_told(used: Server) -> None:
    (engine,) = httpx.get(f"{used.url}/debug/engines", timeout=SECONDS).json()["engines"]
    told = {(name, label, value): number for (name, labels), number in samples(used).items() for label, value in labels}
    assert told["vllm:cache_config_info", "num_gpu_blocks", str(engine["stats"]["num_gpu_blocks"])] == 1
    assert told["vllm:cache_config_info", "block_size", "16"] == 1
    assert told["vllm:engine_sleep_state", "sleep_state", "awake"] == 1
    assert told["vllm:engine_sleep_state", "sleep_state", "discard_all"] == 0
    assert told["vllm:lora_requests_info", "max_lora", "8"] > 0
