"""That no process of Ray's is left for Python to find."""

import gc
import subprocess
import sys
from unittest import mock

import pytest
from ray._private import worker

from cluster.launch.node import ray_processes
from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import ray_cluster


@pytest.mark.long
def test_processes_of_a_cluster_that_did_not_end_in_order_are_collected() -> None:
    code = f"from {__name__} import end_without_ray; end_without_ray()"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "subprocess" in line]) == (0, [])


def end_without_ray() -> None:
    """Ray's library, which is too slow, does nothing."""
    with mock.patch.object(ray_processes, "end_connection"), ray_cluster():
        processes = worker._global_node.all_processes
        assert processes
    worker._global_node = None
    del processes
    gc.collect()
