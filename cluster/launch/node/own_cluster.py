"""Starts a Ray cluster of this machine and this user alone."""

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

from ray._private.worker import BaseContext

from cluster.launch.node.children import Children
from cluster.launch.node.logs import RAY, KeptLogs, RayFolder
from cluster.launch.node.privacy import (
    LOOPBACK_ONLY,
    starting_on_loopback,
    starting_without_a_store,
    token_authentication,
)
from cluster.launch.node.ray_processes import RayProcesses
from cluster.launch.node.start.starting import RayletDied, start
from cluster.workers.placement import CPUS_PER_WORKER, DRIVER_CPUS, GATEWAY_CPUS

# Ray's logical CPUs for batches, jobs of clients, and a replica whose predecessor's are not given
# back yet. They cost nothing: Ray starts no process for them.
CPUS_BESIDE = 1
ATTEMPTS = 3  # to start Ray
OBJECT_STORE_BYTES = 128 << 20  # weights come from disk and steps travel over sockets


@contextlib.contextmanager
def own_cluster(
    num_workers: int, num_gateways: int, kept_logs: KeptLogs | None, **options: Any
) -> Iterator[tuple[BaseContext, dict[str, str], RayProcesses]]:
    """A new cluster, for as long as the context lasts: the connection to it, the environment that
    others need to connect, and its processes. It has room for so many workers, of an engine each,
    and gateways on any machine.
    """
    needed = math.ceil(num_workers * (CPUS_PER_WORKER + DRIVER_CPUS) + num_gateways * GATEWAY_CPUS) + CPUS_BESIDE
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(RayFolder.new(kept_logs))
        environment = LOOPBACK_ONLY | stack.enter_context(token_authentication(folder))
        context, processes = stack.enter_context(
            started(
                num_cpus=max(os.cpu_count() or 1, needed),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(folder / RAY),
                **options,
            )
        )
        yield context, environment, processes


@contextlib.contextmanager
def started(**options: Any) -> Iterator[tuple[BaseContext, RayProcesses]]:
    """Ray on this machine, for as long as the context lasts: the connection to it, and its
    processes. Raises InvalidConfig.
    """
    for attempt in range(1, ATTEMPTS + 1):
        with contextlib.ExitStack() as stack:
            children, processes = Children(), RayProcesses()
            stack.callback(children.collect)
            stack.callback(processes.shutdown)
            try:
                with children.remembered(), processes.starting(), starting_on_loopback(), starting_without_a_store():
                    context = start(agents_may_be_late=attempt > 1, **options)
            except RayletDied:
                if attempt == ATTEMPTS:
                    raise
            else:
                yield context, processes
                return
