"""What `squadron serve` does at SIGTERM, and when Ray's own processes die: the short form of the
harness' scenarios.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.launch.packages import ROOT

TIMEOUT_SECONDS = 400


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["T11", "raylet", "gcs"])
def test_what_has_begun_is_finished_and_nothing_is_left(tmp_path: Path, scenario: str) -> None:
    command = [sys.executable, "-m", "tests.end_to_end.chaos", scenario, "--quick", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    results = json.loads((tmp_path / f"{scenario}.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(results["streams"]) >= 8
    assert set(results["counts"].values()) == {0}
    assert results["figures"]["left behind"] == 0
