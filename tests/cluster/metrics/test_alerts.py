"""Every alert rule, by Prometheus' own tool: it fires where it should, and not in the healthy
neighbour of that.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.prometheus import DASHBOARDS, find

ALERTS = DASHBOARDS / "alerts.yml"
PROMTOOL = find("promtool")
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
MODEL, ENGINE = 'model_name="demo"', 'engine="a"'
ASKED = 'squadron:http_requests_total{route="%s",method="%s",status="%s"}'
CHAT, REFUSED = ASKED % ("/v1/chat/completions", "POST", 200), ASKED % ("other", "POST", 503)
NOT_READY = ASKED % ("/v1/chat/completions", "POST", 503)  # of a model that has had no engine yet, say
ENDED = 'vllm:request_success_total{finished_reason="%s",model_name="demo"}'
FIRST = 'vllm:time_to_first_token_seconds_bucket{le="%s",model_name="demo"}'
WAITING, RUNNING = (f"vllm:num_requests_{what}{{{MODEL},{ENGINE}}}" for what in ("waiting", "running"))
# Without a key, of paths that there are not, and of browsers that ask before they send.
NOISE = {
    ASKED % ("other", *told): "0+99999x20" for told in (("POST", 401), ("POST", 404), ("GET", 404), ("other", 200))
}
PROBES = {ASKED % (path, "GET", 503): "0+99x20" for path in ("/health", "/health/deep")}
CACHE = f"vllm:kv_cache_usage_perc{{{MODEL},{ENGINE}}}"
PREEMPTIONS = f"vllm:num_preemptions_total{{{MODEL},{ENGINE}}}"
NO_ENGINE, FOR_REQUESTS = (f"squadron:{name}{{{MODEL}}}" for name in ("engines", "starts_for_requests"))
RESTARTING = f'squadron:refused_requests_total{{{MODEL},reason="engine_restarting"}}'
UP = f'squadron:engine_up{{{MODEL},engine="%s"}}'


@dataclass(frozen=True, slots=True)
class Case:
    """Series by the minute, as promtool writes values, and those of whose labels an alert tells."""

    alert: str
    series: dict[str, str]
    fires: bool
    labels: tuple[str, ...] = ()


def events(name: str, values: str) -> dict[str, str]:
    return {f"{name}{{{MODEL},{ENGINE}}}": values}


def first_within_5_s(values: str) -> dict[str, str]:
    """Of a hundred requests a minute."""
    return {FIRST % "5": values, FIRST % "10": "0+100x20", FIRST % "+Inf": "0+100x20"}


OF_MODEL, OF_ENGINE = ("model_name",), ("model_name", "engine")
CASES = [
    Case("SquadronUnreachable", {'up{job="squadron",instance="a"}': "1x9 0x11"}, True, ("job", "instance")),
    Case("SquadronUnreachable", {'up{job="squadron",instance="a"}': "1x9 0 1x10"}, False),
    Case("SquadronNoEngine", {UP % "a": "0x20", UP % "b": "0x20"}, True, OF_MODEL),
    Case("SquadronNoEngine", {NO_ENGINE: "0x20"}, True, OF_MODEL),
    Case("SquadronNoEngine", {UP % "a": "0x20", UP % "b": "1x20", NO_ENGINE: "2x20"}, False),
    Case("SquadronNoEngine", {NO_ENGINE: "0x20", FOR_REQUESTS: "0x20"}, True, OF_MODEL),
    Case("SquadronNoEngine", {NO_ENGINE: "0x20", FOR_REQUESTS: "1x20", RESTARTING: "0x20"}, False),  # nobody asks
    Case("SquadronNoEngine", {NO_ENGINE: "0x20", FOR_REQUESTS: "1x20", RESTARTING: "0x16 1x4"}, True, OF_MODEL),
    Case("SquadronEngineDown", {UP % "a": "0x20", UP % "b": "1x20"}, True, OF_ENGINE),
    Case("SquadronEngineDown", {UP % "a": "1x18 0 0", UP % "b": "1x20"}, False),
    Case("SquadronErrors", {ENDED % "error": "0+2x20", ENDED % "stop": "0+98x20"}, True, OF_MODEL),
    Case("SquadronErrors", {ENDED % "error": "0+1x20", ENDED % "stop": "0+199x20"}, False),
    Case("SquadronRefuses", {CHAT: "0+90x20", REFUSED: "0+10x20"}, True),
    Case("SquadronRefuses", {CHAT: "0+90x20", REFUSED: "0+10x20"} | NOISE, True),
    Case("SquadronRefuses", {CHAT: "0+90x20", NOT_READY: "0+10x20"}, True),
    Case("SquadronRefuses", {CHAT: "0+98x20", REFUSED: "0+1x20", NOT_READY: "0+1x20"} | PROBES, False),
    Case(
        "SquadronSlowFirstToken",
        first_within_5_s("0+90x20"),
        True,
        OF_MODEL,
    ),
    Case("SquadronSlowFirstToken", first_within_5_s("0+96x20"), False),
    Case("SquadronQueueGrows", {WAITING: "256x20", RUNNING: "256x20"}, True, OF_MODEL),  # as many as may
    Case("SquadronQueueGrows", {WAITING: "8x20", RUNNING: "8x20"}, True, OF_MODEL),  # of a small engine
    Case("SquadronQueueGrows", {WAITING: "100x20", RUNNING: "256x20"}, False),
    Case("SquadronQueueGrows", {WAITING: "0x17 256x3", RUNNING: "256x20"}, False),  # they came at once
    Case("SquadronCacheFull", {CACHE: "0.99x20", PREEMPTIONS: "0+30x20"}, True, OF_ENGINE),
    Case("SquadronCacheFull", {CACHE: "0.99x20", PREEMPTIONS: "0x20"}, False),
    Case("SquadronWorkersDie", events("squadron:recoveries_total", "0x9 4x11"), True, OF_MODEL),
    Case("SquadronWorkersDie", events("squadron:recoveries_total", "0x9 2x11"), False),
    Case("SquadronRequestQuarantined", events("squadron:quarantined_requests_total", "0x9 1x11"), True, OF_MODEL),
    Case("SquadronRequestQuarantined", events("squadron:quarantined_requests_total", "1x20"), False),
    Case("SquadronNotFinite", events("vllm:corrupted_requests_total", "0x9 1x11"), True, OF_MODEL),
    Case("SquadronNotFinite", events("vllm:corrupted_requests_total", "1x20"), False),
]


def test_every_rule_has_both_cases() -> None:
    assert {(case.alert, case.fires) for case in CASES} == {(name, fires) for name in RULES for fires in (True, False)}


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: .ci/prometheus FOLDER unpacks one")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{'fires' if case.fires else 'silent'}")
def test_a_rule_fires_where_it_should(case: Case, tmp_path: Path) -> None:
    told = {"eval_time": "20m", "alertname": case.alert, "exp_alerts": [expected(case)] if case.fires else []}
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    file = tmp_path / "test.yml"
    test = {"interval": "1m", "input_series": series, "alert_rule_test": [told]}
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def expected(case: Case) -> dict[str, Any]:
    rule = RULES[case.alert]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', next(iter(case.series))))
    summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], rule["annotations"]["summary"])
    shown = {name: labels[name] for name in case.labels}
    return {"exp_labels": rule["labels"] | shown, "exp_annotations": {"summary": summary}}
