"""`squadron status` of a Ray cluster without Serve; with it: tests/end_to_end/test_status.py."""

import subprocess

import pytest

from cluster.launch.packages import ROOT
from tests.cluster.several_nodes import several_nodes
from tests.end_to_end.test_command import SQUADRON


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray's own: `Cluster` leaves sockets open
def test_without_serve_nothing_is_well() -> None:
    with several_nodes([{"num_cpus": 2}]) as cluster:
        command = [*SQUADRON, "status", "--ray-address", cluster.address]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    node, serves = done.stdout.splitlines()
    assert node.startswith("node      ") and serves == "serve     is not running"
