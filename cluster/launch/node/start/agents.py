"""Starts Ray's raylet without waiting for its agents, where they were too slow for it before.

The agents are two Python programs. Where they choose their ports, the raylet waits for these in its
constructor, for 15 seconds, a number in its code, and then aborts. It does not where it is told the
ports. It then waits for an agent when it needs it, for RAY_agent_register_timeout_ms; and it ends
if an agent cannot have its port, of which nobody else is told meanwhile.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

from ray._private import ray_constants, services

from cluster.launch.machine import check_port
from cluster.sockets import LOOPBACK
from engine.errors import InvalidConfig

LISTEN_PORT = "dashboard_agent_listen_port"  # which `start_raylet` tells the agent only
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", LISTEN_PORT)
# Between the ports of Ray's workers and those that Serve gives to gateways (from 30000) and Linux
# to outgoing connections (from 32768): an agent may be a minute late for its port.
FIRST_PORT, LAST_PORT = 20_000, 29_999
_random = random.SystemRandom()  # not the user's, which others have seeded alike


@contextlib.contextmanager
def agents_may_be_late() -> Iterator[None]:
    """For raylets that this process starts within the context. Raises InvalidConfig there if there
    are no free ports.
    """
    start_raylet, start_process = services.start_raylet, services.start_ray_process
    ports: dict[str, int] = {}

    def start_raylet_with_ports(*args: Any, **options: Any) -> Any:
        ports.update(zip(AGENT_PORTS, free_ports(len(AGENT_PORTS)), strict=True))
        return start_raylet(*args, **(options | ports))

    def start_process_with_port(command: list[str], process_type: str, *args: Any, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            command = [*command, f"--{LISTEN_PORT}={ports[LISTEN_PORT]}"]
        return start_process(command, process_type, *args, **options)

    services.start_raylet, services.start_ray_process = start_raylet_with_ports, start_process_with_port
    try:
        yield
    finally:
        services.start_raylet, services.start_ray_process = start_raylet, start_process


def free_ports(count: int) -> list[int]:
    """Different ones; raises InvalidConfig if there are too few."""
    found: list[int] = []
    for port in _random.sample(range(FIRST_PORT, LAST_PORT + 1), LAST_PORT + 1 - FIRST_PORT):
        with contextlib.suppress(InvalidConfig):
            check_port(LOOPBACK, port)
            found.append(port)
            if len(found) == count:
                return found
    raise InvalidConfig(f"Ray's agents need {count} free ports between {FIRST_PORT} and {LAST_PORT}")
