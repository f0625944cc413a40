"""Starts a Ray cluster of this machine alone, or connects to a running one."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ray._private.worker import BaseContext

from cluster.launch.node.connecting import connected
from cluster.launch.node.environment import quiet_options, set_environment
from cluster.launch.node.logs import KeptLogs, silence_ray
from cluster.launch.node.own_cluster import own_cluster
from cluster.launch.node.ray_processes import RayProcesses


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A cluster's address, and the environment that a process needs to connect to it."""

    address: str
    environment: dict[str, str]
    logs: Path  # its folder of logs, on each node
    processes: RayProcesses | None  # Ray's own processes; None if the cluster was running before

    def wait(self) -> None:
        """Wait until the cluster is lost, then raise ClusterLost; if the cluster was already
        running before, wait forever.
        """
        if self.processes is None:
            threading.Event().wait()
        else:
            raise self.processes.wait_for_loss()


@contextlib.contextmanager
def ray_cluster(
    address: str | None = None, *, num_workers: int = 1, num_gateways: int = 1, kept_logs: KeptLogs | None = None
) -> Iterator[RayCluster]:
    """A connection to the Ray cluster at `address`, or to a new one of this machine alone, which
    ends with the context.

    A new one has room for so many workers and gateways on any machine, because their CPUs are Ray's
    logical ones. It is for this machine and this user alone (`privacy`). Its logs are deleted with
    it, except as `kept_logs` says.
    """
    set_environment()
    quiet = quiet_options()
    silence_ray()
    with contextlib.ExitStack() as stack:
        if address is None:
            yield _cluster(*stack.enter_context(own_cluster(num_workers, num_gateways, kept_logs, **quiet)))
        else:
            yield _cluster(stack.enter_context(connected(address, **quiet)), {}, None)


def _cluster(context: BaseContext, environment: dict[str, str], processes: RayProcesses | None) -> RayCluster:
    logs = Path(context.address_info["session_dir"]) / "logs"
    return RayCluster(context.address_info["address"], environment, logs, processes)
