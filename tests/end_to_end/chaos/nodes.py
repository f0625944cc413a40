"""A node that is gone (T7): its raylet and all it had started, while a spare node stands by."""

import asyncio
import contextlib
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

from cluster.chaos.report import Fault, Report
from cluster.launch.app import APP_NAME, build_app
from cluster.launch.node.ending import end_connection
from cluster.launch.node.environment import RAY_ENVIRONMENT
from cluster.launch.node.own_cluster import OBJECT_STORE_BYTES
from cluster.launch.node.start.agents import agents_may_be_late
from cluster.launch.node.start.starting import patience
from cluster.launch.packages import ROOT
from cluster.sockets import LOOPBACK
from cluster.workers.placement import CPUS_PER_WORKER, DRIVER_CPUS
from tests.end_to_end.chaos.app import FOUR_RANKS, app_args
from tests.end_to_end.chaos.options import Options
from tests.end_to_end.chaos.run import Deliver, Load, disturbed
from tests.end_to_end.conftest import free_port

START_SECONDS = 600.0
ENGINE_CPUS = math.ceil(DRIVER_CPUS + 4 * CPUS_PER_WORKER)
HEAD_CPUS = 1  # for gateways and Serve; too few for an engine
SETTLE_SECONDS = 2.0


def lose_node(options: Options) -> Report:
    """T7: the node of the engine and its four workers is removed under 100 streams; a spare one
    takes them.
    """
    load = Load(options.pick(options.streams, 100, 20), concurrency=32, seed=options.seed)
    args = app_args(FOUR_RANKS, recovers=options.recovers)
    with _three_nodes(args) as (nodes, url):
        return asyncio.run(disturbed("T7", url, load, num_faults=1, deliver=_remove(nodes, options.interval or 3.0)))


@dataclass(slots=True)
class _Nodes:
    cluster: Cluster
    engine: Any  # the node that has the engine
    started: threading.Event = field(default_factory=threading.Event)


def _remove(nodes: _Nodes, seconds: float) -> Deliver:
    async def deliver(faults: list[Fault]) -> None:
        await asyncio.sleep(seconds)
        at = time.monotonic()
        await asyncio.to_thread(nodes.cluster.remove_node, nodes.engine, allow_graceful=False)
        faults.append(Fault("node removed", at))
        await asyncio.sleep(SETTLE_SECONDS)

    return deliver


@contextlib.contextmanager
def _three_nodes(args: dict[str, Any]) -> Iterator[tuple[_Nodes, str]]:
    """A head without room for an engine, which comes first and so has the gateway; the engine's
    node; a spare one.
    """
    folder = tempfile.mkdtemp(prefix="sq-", dir="/tmp")
    os.environ.update(RAY_ENVIRONMENT | {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder})
    os.mkdir(f"{folder}/ray")  # where Cluster notes its address, which it takes to be there
    cluster = Cluster()
    port = free_port()
    options = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    try:
        with patience(), agents_may_be_late():
            cluster.add_node(num_cpus=HEAD_CPUS, temp_dir=folder, **options)
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
        serve.start(proxy_location="HeadOnly", http_options={"host": LOOPBACK, "port": port})
        starting = threading.Thread(
            target=serve.run, args=(build_app(args),), kwargs={"name": APP_NAME, "route_prefix": "/"}, daemon=True
        )
        starting.start()
        _wait_for_gateway()
        with patience(), agents_may_be_late():
            nodes = _Nodes(cluster, cluster.add_node(num_cpus=ENGINE_CPUS, **options))
        starting.join(START_SECONDS)
        assert not starting.is_alive(), "the application did not start"
        with patience(), agents_may_be_late():
            cluster.add_node(num_cpus=ENGINE_CPUS, **options)
        yield nodes, f"http://{LOOPBACK}:{port}"
    finally:
        with contextlib.suppress(Exception):
            serve.shutdown()
        end_connection()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_gateway() -> None:
    """Until its actor is placed, which can be on the head only, as yet."""
    deadline = time.monotonic() + START_SECONDS
    while not any("GatewayDeployment" in actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)):
        assert time.monotonic() < deadline, "the gateway was not placed"
        time.sleep(0.2)
