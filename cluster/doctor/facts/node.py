"""What a node is: its versions, limits, memory, GPUs and networks, as one of its processes sees
them.
"""

import os
import platform
import resource
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from cluster.doctor.facts.gpus import Gpu, read_gpus
from cluster.doctor.facts.interfaces import Interface, read_interfaces
from cluster.doctor.facts.software import digest_of_code, other_versions, shown_environment, versions
from cluster.memory import available_memory, total_memory

SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Sizes in bytes."""

    node_id: str  # Ray's
    address: str  # by which other nodes reach it
    host: str
    system: str
    cpu: str
    num_cpus: int
    memory_total: int
    memory_available: int
    shm_total: int
    shm_free: int
    open_files: int  # that a process may have open
    niceness: int  # of a worker process; lower ones get more time
    versions: dict[str, str]  # by package; those that are missing are left out
    others: dict[str, str]  # of packages that may differ
    code: str  # digest of our packages' sources
    gpus: tuple[Gpu, ...]
    interfaces: tuple[Interface, ...]
    environment: dict[str, str]


def read_node(node_id: str, address: str) -> NodeFacts:
    """Of the node that this process is on."""
    shm = shutil.disk_usage(SHM) if SHM.exists() else None
    return NodeFacts(
        node_id=node_id,
        address=address,
        host=socket.gethostname(),
        system=platform.platform(),
        cpu=_cpu(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_total=total_memory(),
        memory_available=available_memory(),
        shm_total=shm.total if shm is not None else 0,
        shm_free=shm.free if shm is not None else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        niceness=os.nice(0),
        versions=versions(),
        others=other_versions(),
        code=digest_of_code(),
        gpus=read_gpus(),
        interfaces=read_interfaces(),
        environment=shown_environment(dict(os.environ)),
    )


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
