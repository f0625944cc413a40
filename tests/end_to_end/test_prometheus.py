"""A real Prometheus reads the figures of the running server: every panel of the dashboard and every
alert rule finds its series.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.metrics.catalog import CATALOG
from tests.end_to_end.conftest import DEMO, Server, free_port

DASHBOARDS = DEMO.parent / "dashboards"
SECONDS = 300  # more than anything here takes
SELECTOR = re.compile(r"((?:vllm|squadron):\w+|\bup\b)(\{[^}]*\})?")
NOT_WITHOUT_KEYS = {"squadron:key_requests", "squadron:key_tokens"}
NOT_WITHOUT_DRAFTS = {
    name for name in CATALOG if name.startswith("vllm:spec_decode")
}  # tests of those: test_speculation
NOT_WITHOUT_PREFILL_ENGINES = {
    name for name in CATALOG if name.startswith("squadron:prefill")
}  # tests of those: test_prefill


def find(name: str) -> str | None:
    """Where .ci/prometheus puts it, or where the system has it."""
    unpacked = Path(sys.prefix) / "prometheus" / "usr" / "bin" / name
    return str(unpacked) if unpacked.exists() else shutil.which(name)


PROMETHEUS = find("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="no Prometheus here: .ci/prometheus FOLDER unpacks one"
)


@dataclass(frozen=True, slots=True)
class Prometheus:
    http: httpx.Client

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = self.http.get("/api/v1/query", params={"query": expression})
        if answer.status_code == 503:  # it is starting
            return []
        assert answer.status_code == 200, (expression, answer.text)
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def evaluated_rules(self) -> list[dict[str, Any]]:
        """Once each has been evaluated."""
        deadline = time.monotonic() + SECONDS
        while True:
            groups = self.http.get("/api/v1/rules").json()["data"]["groups"]
            rules: list[dict[str, Any]] = [rule for group in groups for rule in group["rules"]]
            if all(rule["health"] != "unknown" for rule in rules):
                return rules
            assert time.monotonic() < deadline, "rules are not evaluated"
            time.sleep(0.1)

    def until(self, expression: str) -> None:
        """It has a result."""
        deadline = time.monotonic() + SECONDS
        while not self.query(expression):
            assert time.monotonic() < deadline, f"{expression} stays empty"
            time.sleep(0.1)


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
    """Reads the server every second, with our configuration and rules."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config = yaml.safe_load((DASHBOARDS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), "1s")
    config["rule_files"] = [str(DASHBOARDS / name) for name in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{used.port}"]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert PROMETHEUS is not None
    command = [PROMETHEUS, f"--config.file={file}", f"--storage.tsdb.path={folder}", "--log.level=warn"]
    process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"])
    transport = httpx.HTTPTransport(retries=10)  # until it listens
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=SECONDS) as http:
            prometheus = Prometheus(http)
            prometheus.until("count_over_time(vllm:num_requests_running[1m]) >= 3")
            yield prometheus
    finally:
        process.terminate()
        process.wait(SECONDS)


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression."""
    board = json.loads((DASHBOARDS / "squadron.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def rules() -> Iterator[tuple[str, str]]:
    """Name and expression."""
    for group in yaml.safe_load((DASHBOARDS / "alerts.yml").read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


@needs_prometheus
def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    empty = []
    for title, expression in panels():
        filled = expression.replace("$model_name", "demo").replace("$__rate_interval", "1m")
        if not prometheus.query(filled):
            empty.append((title, filled))
    assert empty == [] and len(list(panels())) > 40


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
