"""The short form of the harness: few faults, each of which would be seen, and the proof that a loss
is.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.chaos.requests import KINDS
from cluster.launch.packages import ROOT

TIMEOUT_SECONDS = 400


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Status, results, and what was printed, of a scenario in a process of its own: it starts its
    own Ray.
    """
    command = [sys.executable, "-m", "tests.end_to_end.chaos", *arguments, "--quick", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    (file,) = folder.glob("*.json")
    return done.returncode, json.loads(file.read_text()), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("scenario", "num_faults", "num_models"),
    [
        pytest.param("T1", 2, 1, id="workers", marks=pytest.mark.long),  # else: tests/end_to_end/test_chaos_command.py
        pytest.param("T1", 2, 2, id="workers of two models", marks=pytest.mark.long),
        pytest.param("T4-two", 1, 1, id="engine", marks=pytest.mark.long),
        pytest.param("T4-two", 1, 2, id="engine of two models", marks=pytest.mark.long),
        pytest.param("T6-worker", 1, 1, id="frozen worker", marks=pytest.mark.long),
    ],
)
def test_nothing_is_lost_doubled_or_changed(tmp_path: Path, scenario: str, num_faults: int, num_models: int) -> None:
    numbers = ["--interval", "2", "--faults", str(num_faults), "--models", str(num_models)]
    status, results, printed = run(tmp_path, scenario, *numbers)
    assert status == 0, printed
    assert results["passed"]
    assert len(results["faults"]) == num_faults
    assert {stream["kind"] for stream in results["streams"]} == set(KINDS)
    assert set(results["counts"].values()) == {0}
    assert all(stream["sha256"] == stream["expected"] for stream in results["streams"])


@pytest.mark.long
def test_nothing_is_lost_while_drafts_are_checked(tmp_path: Path) -> None:
    drafts = json.dumps({"method": "ngram", "prompt_lookup_min": 1})
    status, results, printed = run(tmp_path, "T1", "--interval", "2", "--faults", "2", "--speculative-config", drafts)
    assert status == 0, printed
    assert len(results["faults"]) == 2 and set(results["counts"].values()) == {0}
    assert results["figures"]["right guesses"] > 0


@pytest.mark.long
def test_without_recovery_the_loss_is_seen(tmp_path: Path) -> None:
    status, results, printed = run(tmp_path, "T1", "--without-recovery", "--interval", "1", "--faults", "1")
    assert status == 1, printed
    assert not results["passed"]
    assert results["counts"]["lost"] > 0
    assert any("is restarting" in str(stream["error"]) for stream in results["streams"])


@pytest.mark.long
def test_an_engine_that_holds_the_interpreters_lock_is_not_lost(tmp_path: Path) -> None:
    status, results, printed = run(tmp_path, "T8-lock")
    assert status == 0, printed
    assert len(results["faults"]) == 1 and set(results["counts"].values()) == {0}
    assert all(stream["sha256"] == stream["expected"] for stream in results["streams"])


@pytest.mark.long
def test_hostile_forms_harm_nobody(tmp_path: Path) -> None:
    status, results, printed = run(tmp_path, "T12-form")
    assert status == 0, printed
    assert set(results["counts"].values()) == {0} and results["figures"]["restarts"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param("T14", id="floods"),
        pytest.param("T17", id="slow readers"),
        pytest.param("T18", id="ten times too many requests"),
    ],
)
def test_too_much_harms_nobody(tmp_path: Path, scenario: str) -> None:
    status, results, printed = run(tmp_path, scenario)
    assert status == 0, printed
    assert set(results["counts"].values()) == {0}
