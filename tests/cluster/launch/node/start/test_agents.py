"""Ray's agents, which may be late."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray._private import services

from cluster.launch.node.start.agents import AGENT_PORTS, agents_may_be_late
from cluster.launch.packages import ROOT

# Agents begin once there is a file, which is made after Ray has started: had the raylet waited for
# them, it would have ended.
SITECUSTOMIZE = """
import os, sys, time

if any(name in word for name in ("dashboard/agent.py", "runtime_env/agent/main.py") for word in sys.orig_argv):
    while not os.path.exists(os.environ["AGENTS_MAY_BEGIN"]):
        time.sleep(0.1)
"""
PROGRAM = """
import os, tempfile
from pathlib import Path

from cluster.launch.node import own_cluster
from cluster.launch.node.environment import set_environment

os.environ["RAY_AUTH_MODE"] = "disabled"
set_environment()
with (
    tempfile.TemporaryDirectory(prefix="sq-", dir="/tmp") as folder,
    own_cluster.started(num_cpus=1, include_dashboard=False, _temp_dir=folder),
):
    Path(os.environ["AGENTS_MAY_BEGIN"]).touch()
    import ray

    print(ray.get(ray.remote(runtime_env={"env_vars": {"A": "came"}})(lambda: os.environ["A"]).remote()))
"""


def test_a_raylet_is_told_the_ports_of_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray gives it some of them only if it chose them itself."""
    commands, told = [], {}

    def start_raylet(address: str, **options: int) -> None:
        told.update(options)
        services.start_ray_process(["raylet", address], "raylet", fate_share=True)
        services.start_ray_process(["monitor"], "monitor", fate_share=True)

    monkeypatch.setattr(services, "start_raylet", start_raylet)
    monkeypatch.setattr(services, "start_ray_process", lambda command, *_, **__: commands.append(command))
    with agents_may_be_late():
        services.start_raylet("here", metrics_agent_port=0, dashboard_agent_listen_port=52365)
    assert set(told) == set(AGENT_PORTS) and 0 not in told.values() and len(set(told.values())) == len(AGENT_PORTS)
    listen = f"--dashboard_agent_listen_port={told['dashboard_agent_listen_port']}"
    assert commands == [["raylet", "here", listen], ["monitor"]]
    assert services.start_raylet is start_raylet


@pytest.mark.long
def test_ray_starts_before_its_agents(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "AGENTS_MAY_BEGIN": str(tmp_path / "begin"),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "came\n"), done.stderr
