"""A worker's process that has not reported yet. It has no line, and the driver does not know which
process it is; but Ray knows its process id and its node, and on its own machine it can be seen
whether a signal has stopped it.
"""

import functools
import logging
import os
import signal
import time
from typing import Any

import ray
from ray._private.state import actors
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.workers.processes.process_state import STOPPED_SECONDS, is_stopped, read_start_time

logger = logging.getLogger("squadron.executor")

LOOK_SECONDS = 0.2  # between checks of a stopped one
ANSWER_SECONDS = 30.0  # for another node's answer, which takes a new process there


def end_if_frozen(actor: Any) -> None:
    """Kill the actor's process if a signal has stopped it; its calls then fail. Returns at once if
    it runs on this node; after STOPPED_SECONDS if it is stopped, and a moment later if another node
    has to look.
    """
    known = actors(actor._actor_id.hex())
    pid, node_id = known.get("Pid", 0), known.get("Address", {}).get("NodeID", "")
    if not pid or not node_id:
        return  # it is not placed yet, or Ray still waits for its process, and will replace it if it does not start
    if kill_if_stopped(pid) if node_id == _own_node() else _ask(node_id, pid):
        logger.warning("process %d was stopped by a signal before it reported; it was killed", pid)


def kill_if_stopped(pid: int) -> bool:
    """Whether a process of this machine was stopped for STOPPED_SECONDS, and so was killed."""
    start_time = read_start_time(pid)
    deadline = time.monotonic() + STOPPED_SECONDS
    while start_time is not None and is_stopped(pid, start_time):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _own_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _ask(node_id: str, pid: int) -> bool:
    """The result of `kill_if_stopped` there; False if there is no answer."""
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    look = _as_task().options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        return bool(ray.get(look.remote(pid), timeout=ANSWER_SECONDS))
    except RayError:  # the node is gone or too busy: it is asked again
        return False


@functools.cache
def _as_task() -> Any:
    return ray.remote(kill_if_stopped)
