"""Checks that this machine has the GPUs, the memory and the port that a configuration needs, before
anything starts.
"""

import socket
from dataclasses import dataclass

from ray._private.accelerators import get_accelerator_manager_for_resource

from cluster.checkpoint.plan import check_device
from cluster.checkpoint.size import Plan
from cluster.memory import available_memory, check_memory, human
from engine.config import EngineConfig
from engine.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of all ranks of all engines on this machine's CPU, in bytes; `__str__` is a line of
    `squadron plan`.
    """

    num_ranks: int
    needed: int  # for weights and cache
    available: int

    def __str__(self) -> str:
        return (
            f"memory here           {human(self.needed)} for {self.num_ranks} rank(s), {human(self.available)} "
            "available"
        )


def check_machine(config: EngineConfig, plan: Plan, num_engines: int = 1, *, taken: int = 0) -> Need | None:
    """The memory needed; None if GPUs compute. `taken`: bytes that other models will take. Raises
    InvalidConfig if this machine does not have what the configuration needs.
    """
    wanted, there = num_engines * config.world_size, num_gpus()
    if config.device == "cuda" and there < wanted:
        raise InvalidConfig(f"device=cuda needs {wanted} GPU(s), and this machine has {there}; device=cpu would work")
    if there == 0:
        check_device(config, "cpu", plan.dtypes)
    if config.device == "cuda" or (config.device == "auto" and there >= wanted):
        return None
    each = plan.weight_bytes + plan.cache_bytes + plan.adapter_bytes
    need = Need(wanted, wanted * each, max(0, available_memory() - taken))
    check_memory("this machine", wanted, plan.weight_bytes, plan.cache_bytes + plan.adapter_bytes, need.available)
    return need


def num_gpus() -> int:
    """The GPUs that Ray would find here, without those that CUDA_VISIBLE_DEVICES hides."""
    manager = get_accelerator_manager_for_resource("GPU")
    visible = manager.get_current_process_visible_accelerator_ids()
    found: int = manager.get_current_node_num_accelerators()
    return found if visible is None else min(found, len(visible))


def checked_port(port: object) -> int:
    """Raises InvalidConfig unless one can be listened on by this number."""
    if not isinstance(port, int) or not 0 < port < 1 << 16:
        raise InvalidConfig(f"port={port!r} is not a number from 1 to 65535")
    return port


def check_port(host: str, port: int) -> None:
    """Raises InvalidConfig unless host:port can be listened on."""
    checked_port(port)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InvalidConfig(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port"
            ) from None


def free_port(host: str, first: int, last: int) -> int:
    """The first of these ports that can be listened on; raises InvalidConfig if none can."""
    for port in range(first, last + 1):
        try:
            check_port(host, port)
        except InvalidConfig:
            continue
        return port
    raise InvalidConfig(f"every port from {first} to {last} is taken; choose another with --port")
