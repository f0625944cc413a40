"""`squadron status` of a server, by HTTP, and of its Ray cluster."""

import os
import subprocess

import pytest

from cluster.cli import main
from cluster.launch.packages import ROOT
from tests.end_to_end.conftest import Server
from tests.end_to_end.test_command import SQUADRON


def test_what_a_server_tells(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--base-url", server.url]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["server"].startswith(f"{server.url}, squadron ")
    assert lines["health"] == "ok"
    assert lines["models"].split(", ")[0] == "demo"
    assert lines["engines"].startswith("1 of 1 can answer; cache in use: ")
    assert lines["requests"] == "0 running, 0 waiting, 0 swapped"


def test_what_a_cluster_tells(server: Server) -> None:
    command = [*SQUADRON, "status", "--ray-address", server.ray.address]
    environment = os.environ | server.ray.environment
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "node      127.0.0.1: " in done.stdout and " CPU, 0 GPU" in done.stdout
    assert "app       squadron: RUNNING\n" in done.stdout
    assert "  EngineDeployment: HEALTHY, 1 RUNNING\n" in done.stdout
    assert "  GatewayDeployment: HEALTHY, 1 RUNNING\n" in done.stdout
