"""A real Prometheus, with our configuration and rules, and the dashboard's panels to ask it for."""

import contextlib
import json
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

from tests.end_to_end.conftest import DEMO, LOOPBACK, free_port

DASHBOARDS = DEMO.parent / "dashboards"
OF_KEYS = "squadron:key_"  # metrics
SECONDS = 300  # more than anything here takes


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


@contextlib.contextmanager
def reading(server_port: int, folder: Path, key: str | None = None) -> Iterator[Prometheus]:
    """Reads the server every second, some times so far; with its API key, if it needs one. `folder`
    is the reader's own.
    """
    config = yaml.safe_load((DASHBOARDS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), "1s")
    config["rule_files"] = [str(DASHBOARDS / name) for name in config["rule_files"]]
    (scraped,) = config["scrape_configs"]
    scraped["static_configs"][0]["targets"] = [f"{LOOPBACK}:{server_port}"]
    if key is not None:
        scraped["authorization"] = {"credentials": key}
    file, port = folder / "prometheus.yml", free_port()
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert PROMETHEUS is not None
    command = [PROMETHEUS, f"--config.file={file}", f"--storage.tsdb.path={folder}", "--log.level=warn"]
    process = subprocess.Popen([*command, f"--web.listen-address={LOOPBACK}:{port}"])
    transport = httpx.HTTPTransport(retries=10)  # until it listens
    try:
        with httpx.Client(base_url=f"http://{LOOPBACK}:{port}", transport=transport, timeout=SECONDS) as http:
            prometheus = Prometheus(http)
            prometheus.until("count_over_time(vllm:num_requests_running[1m]) >= 3")
            yield prometheus
    finally:
        process.terminate()
        process.wait(SECONDS)


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression, of the demo's model."""
    board = json.loads((DASHBOARDS / "squadron.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$model_name", "demo").replace("$__rate_interval", "1m")


def rules() -> Iterator[tuple[str, str]]:
    """Name and expression."""
    for group in yaml.safe_load((DASHBOARDS / "alerts.yml").read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
