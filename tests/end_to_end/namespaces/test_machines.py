"""A cluster of machines made of namespaces: a node is lost under streams, and a spare one goes on.

Not run by default: it needs root, two minutes and 4 GB:
`pytest -m ray_up tests/end_to_end/namespaces`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.chaos.requests import KINDS
from cluster.launch.packages import ROOT
from tests.end_to_end.namespaces.machines import why_not

pytestmark = [pytest.mark.ray_up, pytest.mark.timeout(1200)]


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """The results of a scenario, which has passed."""
    command = [sys.executable, "-m", "tests.end_to_end.chaos", *arguments, "--nodes", "namespaces", "--quick"]
    done = subprocess.run([*command, "--output", str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.json")
    return dict(json.loads(file.read_text()))


@pytest.fixture(autouse=True)
def _machines() -> None:
    if reason := why_not():
        pytest.skip(reason)


def test_a_lost_node_changes_no_answer(tmp_path: Path) -> None:
    results = run(tmp_path, "T7")
    assert len(results["faults"]) == 1
    assert {stream["kind"] for stream in results["streams"]} == set(KINDS)
    assert all(stream["sha256"] == stream["expected"] for stream in results["streams"])
