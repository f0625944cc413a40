"""`squadron chaos` at a server that is well: what it reports, and that it does not pass for want of
faults.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from cluster.chaos import faults
from cluster.cli import main
from tests.end_to_end.conftest import Server

FEW = ("--streams", "7", "--concurrency", "4", "--max-tokens", "24", "--interval", "0.2", "--faults", "2")


def test_streams_under_faults_are_reported_with_their_hashes(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    kill = f"kill -9 $(pgrep --parent {raylet()} --full WorkerActor.run | head -n 1)"
    assert main(["chaos", "--base-url", server.url, *FEW, "--fault-command", kill, "--output", str(results)]) == 0
    printed = capfd.readouterr().out.splitlines()
    assert printed[0] == "faults delivered   2 of 2 named"
    assert printed[-1] == f"chaos at {server.url}: passed"
    written = json.loads(results.read_text())
    assert written["counts"] == {"lost": 0, "duplicated": 0, "changed": 0, "silently cut": 0}
    assert {stream["request"] for stream in written["streams"]} == set(range(7))
    assert all(stream["sha256"] == stream["expected"] for stream in written["streams"])


def test_a_command_that_hits_nothing_is_no_fault(
    server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faults, "HIT_SECONDS", 1.0)
    with pytest.raises(SystemExit) as stopped:
        main(["chaos", "--base-url", server.url, *FEW, "--fault-command", "true", "--seconds", "1"])
    assert stopped.value.code == 1
    said = capfd.readouterr()
    assert "the fault command had no effect: no worker and no engine was lost" in said.err
    assert "unmet: 0 faults were delivered, not 2" in said.out


def raylet() -> int:
    """The process whose children are the workers of this process' cluster."""
    found = subprocess.run(["pgrep", "--parent", str(os.getpid()), "raylet"], capture_output=True, text=True)
    return int(found.stdout)


def test_faults_that_were_not_delivered_fail_the_run(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    url = server.url.replace("://", "://me:secret@")
    with pytest.raises(SystemExit) as stopped:
        main(["chaos", "--base-url", url, *FEW, "--fault-command", "false", "--seconds", "1"])
    assert stopped.value.code == 1
    told = capfd.readouterr().out
    assert "unmet: 0 faults were delivered, not 2" in told
    assert "chaos at http://me:" in told and "secret" not in told


def test_a_target_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--base-url", "http://127.0.0.1:1"]) == 2
    assert "squadron chaos: http://127.0.0.1:1/v1/models does not answer" in capfd.readouterr().err
