"""`squadron chaos` at a server that is well: what it reports, and that it does not pass for want of faults."""

import json
import sys
from pathlib import Path

import pytest

from cluster.cli import main
from tests.end_to_end.conftest import Server

FEW = ("--streams", "7", "--concurrency", "4", "--max-tokens", "24", "--interval", "0.2", "--faults", "2")


def test_streams_under_faults_are_reported_with_their_hashes(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    touch = f'{sys.executable} -c \'open("{tmp_path}/faults", "a").write("x")\''
    assert main(["chaos", "--base-url", server.url, *FEW, "--fault-command", touch, "--output", str(results)]) == 0
    assert (tmp_path / "faults").read_text() == "xx"
    printed = capfd.readouterr().out.splitlines()
    assert printed[0] == "faults delivered   2 of 2 named"
    assert printed[-1] == f"chaos at {server.url}: passed"
    written = json.loads(results.read_text())
    assert written["counts"] == {"lost": 0, "duplicated": 0, "changed": 0, "silently cut": 0}
    assert {stream["request"] for stream in written["streams"]} == set(range(7))
    assert all(stream["sha256"] == stream["expected"] for stream in written["streams"])


def test_faults_that_were_not_delivered_fail_the_run(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["chaos", "--base-url", server.url, *FEW, "--fault-command", "false", "--seconds", "1"])
    assert stopped.value.code == 1
    assert "unmet: 0 faults were delivered, not 2" in capfd.readouterr().out


def test_a_target_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--base-url", "http://127.0.0.1:1"]) == 2
    assert "squadron chaos: http://127.0.0.1:1/v1/models does not answer" in capfd.readouterr().err
