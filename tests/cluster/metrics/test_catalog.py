"""The documentation lists every metric, and nothing else."""

import re
from pathlib import Path

from cluster.metrics.catalog import CATALOG

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_docs_list_every_metric_with_its_type():
    rows = re.findall(r"^\| `((?:vllm|squadron):\w+)`[^|]*\| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    shown = {name + ("_total" if metric.kind == "counter" else ""): metric.kind for name, metric in CATALOG.items()}
    assert dict(rows) == shown and len(rows) == len(shown)
