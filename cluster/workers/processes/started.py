"""A worker's actor as Ray starts it in a process of its own, until it has introduced itself, and as
Ray ends it.
"""

import functools
import threading
import time
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.workers.placement import Placement
from cluster.workers.processes.actor import LookoutActor, WorkerActor
from cluster.workers.processes.newborn import end_if_frozen
from cluster.workers.processes.process_state import Facts

DOUBT_SECONDS = 5.0  # without a first message, after which it is checked, and again

Role = Literal["worker", "spare", "lookout"]


class StartedActor:
    """`handle` is Ray's, `introduction` a call that returns when the process is ready."""

    def __init__(self, placement: Placement, bundle: int, role: Role) -> None:
        """Have Ray start it in a bundle of the group. Only workers take the bundle's resources;
        spares take none, even once they are used.
        """
        options = _as_actor(LookoutActor if role == "lookout" else WorkerActor).options(
            num_cpus=placement.num_cpus if role == "worker" else 0,
            num_gpus=placement.num_gpus if role == "worker" else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement.group, bundle),
        )
        self.handle: Any = options.remote()
        self.introduction: Any = self.handle.introduce.remote()
        self._doubted = time.monotonic()

    def facts(self) -> Facts:
        """Wait for the introduction; raises RayError."""
        facts: Facts = ray.get(self.introduction)
        return facts

    def doubt(self) -> None:
        """Must be called while the introduction is awaited: a process that is stopped meanwhile
        would never report.
        """
        if time.monotonic() > self._doubted + DOUBT_SECONDS:
            end_if_frozen(self.handle)
            self._doubted = time.monotonic()

    def end(self) -> None:
        """In the background: `ray.kill` was seen never to return, for an actor that was already
        dying.
        """
        if ray.is_initialized():
            threading.Thread(target=ray.kill, args=(self.handle,), name="kill", daemon=True).start()


@functools.cache
def _as_actor(plain: type) -> Any:
    """Cached per class: Ray keeps every actor class that it is given, under a random name, as long
    as the job lasts.
    """
    return ray.remote(plain)
