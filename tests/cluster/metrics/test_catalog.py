"""The documentation lists every metric, and nothing else."""

import re
from pathlib import Path

import yaml

from cluster.headers.full_queue import PATHS
from cluster.metrics.catalog import CATALOG

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "operations.md"


def test_docs_list_every_metric_with_its_type():
    rows = re.findall(r"^\| `((?:vllm|squadron):\w+)`[^|]*\| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    shown = {name + ("_total" if metric.kind == "counter" else ""): metric.kind for name, metric in CATALOG.items()}
    assert dict(rows) == shown and len(rows) == len(shown)


def test_the_alert_for_refusals_counts_every_route_that_is_refused():
    groups = yaml.safe_load((ROOT / "configs" / "dashboards" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    (rule,) = (rule["expr"] for group in groups for rule in group["rules"] if rule["alert"] == "SquadronRefuses")
    refused, asked = map(re.compile, re.findall(r'route=~"([^"]*)"', rule))
    assert refused == asked
    assert [path for path in PATHS if not asked.fullmatch(path)] == []
