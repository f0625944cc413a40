"""A start for which the cluster has no room says so while it waits."""

import os
import subprocess
import sys

from ray import serve

from cluster.commands.server.console import told_waits
from cluster.launch.app import APP_NAME
from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serve_calls import run, start_serve_alone

LINE = "1 replica(s) of Waiter have no place in the Ray cluster yet: each needs {\"CPU\": 1000}; free are {'CPU': "


def test_a_replica_without_room_is_told() -> None:
    environment = os.environ | {"RAY_SERVE_SLOW_STARTUP_WARNING_S": "1", "RAY_SERVE_SLOW_STARTUP_WARNING_PERIOD_S": "1"}
    code = f"from {__name__} import start; start()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = next((line for line in process.stderr if "no place" in line), "")
        process.terminate()
    assert told.startswith(LINE), told


@serve.deployment(ray_actor_options={"num_cpus": 1000})
class Waiter:
    pass


def start() -> None:
    with ray_cluster():
        start_serve_alone()
        with told_waits(APP_NAME):
            run(Waiter.bind())
