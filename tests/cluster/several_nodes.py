"""A Ray cluster of several nodes on this machine, with whatever resources they are said to have."""

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from cluster.launch.node.ending import end_connection
from cluster.launch.node.ray_processes import RayProcesses
from cluster.launch.node.start.agents import agents_may_be_late
from cluster.launch.node.start.starting import patience
from cluster.launch.packages import ROOT
from tests.cluster.open_ray import open_ray
from tests.engine.support.nixl import FOLDER as NIXL

SMALL = {"include_dashboard": False, "object_store_memory": 80 << 20}


@contextlib.contextmanager
def several_nodes(nodes: Sequence[dict[str, Any]], **environment: str) -> Iterator[Cluster]:
    """The first is the head; this process is connected to it. `environment`: of Ray's processes."""
    folder = Path(tempfile.mkdtemp(prefix="sq-", dir="/tmp"))
    processes = RayProcesses()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        open_ray(patch, RAY_TMPDIR=str(folder), **environment)
        (folder / "ray").mkdir()  # where Cluster notes its address, which it takes to be there
        stack.callback(gc.collect)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(processes.shutdown)
        stack.enter_context(patience())  # of Ray, whose nodes start slowly where much else runs
        stack.enter_context(agents_may_be_late())
        with processes.starting():
            head = nodes[0] | {"temp_dir": str(folder)} | SMALL
            cluster = Cluster(True, head_node_args=head, shutdown_at_exit=False)
        stack.callback(cluster.shutdown)
        stack.callback(end_connection)
        for node in nodes[1:]:
            cluster.add_node(**node, **SMALL)
        path = os.pathsep.join([str(ROOT), *([str(NIXL)] if NIXL.exists() else [])])
        ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False)
        yield cluster
