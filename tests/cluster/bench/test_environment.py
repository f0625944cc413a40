"""What a report says of the machine and the command it was measured with."""

import json
import os
import sys
from datetime import UTC, datetime

import pytest

from cluster.bench.environment import environment
from cluster.version import VERSION


@pytest.mark.parametrize(
    "given",
    [
        *(["--api-key", "sk-1 2"], ["--api-key=sk-1"], ["--api-k", "sk-1"], ["--a=sk-1"]),
        *(["--api-key", "it's sk-1"], ["--api-key=a sk-1"], ["--a=it's sk-1"]),
        *(["--base-url", "http://me:sk-1@host"], ["--base-url=http://me:sk-1@host/v1"]),
    ],
)
def test_no_report_holds_a_key(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["squadron", "bench", *given, "--api-key-file", "keys", "--output", "r.json"])
    command = environment()["command"]
    assert "sk-1" not in command and command.endswith("--output r.json")


def test_the_report_names_the_command_the_machine_and_the_versions() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert sys.orig_argv[-1] in found["command"]
    assert datetime.fromisoformat(found["date"]) <= datetime.now(UTC)
    assert found["machine"]["num_cpus"] == len(os.sched_getaffinity(0))
    assert found["machine"]["cpu"]
    assert found["versions"]["squadron"] == VERSION
    assert {"python", "numpy", "ray", "torch"} <= found["versions"].keys()
