"""Starts a Ray cluster of this machine alone, or connects to a running one."""

import contextlib
import logging
import math
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray._private.worker import BaseContext

from cluster.launch.logs import RAY, KeptLogs, RayFolder, silence_deaths
from cluster.launch.privacy import LOOPBACK_ONLY, starting_on_loopback, token_authentication
from cluster.launch.ray_processes import RayProcesses, answers
from cluster.workers.placement import CPUS_PER_WORKER
from engine.errors import InvalidConfig

ROOT = Path(__file__).resolve().parents[2]
CPUS_BESIDE_WORKERS = 1  # Ray's logical CPUs for gateways and drivers
GRPC_SECONDS = 15.0  # for a server at --ray-address to answer
OBJECT_STORE_BYTES = 128 << 20  # weights come from disk and steps travel over sockets
# Environment variables that Ray and its processes read when they start; existing values are kept.
RAY_ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # otherwise workers run at nice 15
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without GPUs keeps CUDA_VISIBLE_DEVICES as it is
    # Useful only to a dashboard, which such a cluster does not have.
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    # glibc's: each of some forty threads would have a heap of its own, which never shrinks below
    # its own peak.
    "MALLOC_ARENA_MAX": "2",
}


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A cluster's address, and the environment that a process needs to connect to it."""

    address: str
    environment: dict[str, str]
    logs: Path  # its folder of logs, on each node
    processes: RayProcesses | None  # Ray's own processes; None if the cluster was running before

    def wait(self) -> None:
        """Wait until it is lost, then raise ClusterLost; wait forever if the cluster was running
        before.
        """
        if self.processes is None:
            threading.Event().wait()
        else:
            raise self.processes.wait_for_loss()


@contextlib.contextmanager
def ray_cluster(
    address: str | None = None, *, num_workers: int = 1, kept_logs: KeptLogs | None = None
) -> Iterator[RayCluster]:
    """A connection to the Ray cluster at `address`, or to a new one of this machine alone, which
    ends with the context.

    A new one has room for `num_workers` on any machine, because a worker's CPUs are Ray's logical
    ones. It is for this machine and this user alone (`privacy`). Its logs are deleted with it,
    except as `kept_logs` says.
    """
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    handler = signal.getsignal(signal.SIGTERM)
    quiet = {
        "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}},
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    silence_deaths()
    with contextlib.ExitStack() as stack:
        environment: dict[str, str] = {}
        processes: RayProcesses | None = None
        if address is None:
            needed = math.ceil(num_workers * CPUS_PER_WORKER) + CPUS_BESIDE_WORKERS
            # Short: a socket's path has at most 107 bytes.
            folder = stack.enter_context(RayFolder(Path(tempfile.mkdtemp(prefix="squadron-", dir="/tmp")), kept_logs))
            environment = LOOPBACK_ONLY | stack.enter_context(token_authentication(folder))
            processes = RayProcesses()
            stack.callback(processes.shutdown)
            with processes.starting(), starting_on_loopback():
                context = _start(
                    num_cpus=max(os.cpu_count() or 1, needed),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=str(folder / RAY),
                    **quiet,
                )
        else:
            context = _connect(address, quiet)
            stack.callback(ray.shutdown)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has replaced it with its own
        logs = Path(context.address_info["session_dir"]) / "logs"
        yield RayCluster(context.address_info["address"], environment, logs, processes)


def _start(**options: Any) -> BaseContext:
    """A cluster of this machine; raises InvalidConfig if Ray's own processes do not start within
    Ray's limit of half a minute.
    """
    try:
        return ray.init(address="local", **options)
    except (RuntimeError, ConnectionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidConfig(f"Ray did not start on this machine, which may be too busy or too full: {reason}") from None


def _connect(address: str, options: dict[str, Any]) -> BaseContext:
    """Raises InvalidConfig, quickly if nothing listens there or it is not Ray: Ray itself would try
    for minutes.
    """
    server = address.removeprefix("ray://")
    is_named = server.rpartition(":")[2].isdecimal()  # "auto" has no port
    if is_named and not answers(server):
        raise InvalidConfig(
            f"nothing answers at --ray-address {address}; is the port that of `ray start`, and the cluster up?"
        )
    if is_named and not _speaks_grpc(server):
        raise InvalidConfig(
            f"what listens at --ray-address {address} did not answer as Ray does within {GRPC_SECONDS:.0f} s; "
            "is the port that of `ray start`?"
        )
    try:
        return ray.init(address=address, **options)
    except ConnectionError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidConfig(f"no Ray cluster lets us in at --ray-address {address}: {reason}") from None


def _speaks_grpc(server: str) -> bool:
    """Whether the server at host:port answers like gRPC, before any authentication."""
    with init_grpc_channel(server, [("grpc.enable_http_proxy", 0)]) as channel:  # as Ray's own connections
        try:
            grpc.channel_ready_future(channel).result(timeout=GRPC_SECONDS)
        except grpc.FutureTimeoutError:
            return False
    return True
