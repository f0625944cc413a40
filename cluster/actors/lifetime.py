"""Actors that end with an application: later than its gateways and engines, which they outlive."""

import threading
import time

import ray
from ray.exceptions import RayError

from cluster.actors.named import actor_names

LOOK_SECONDS = 60.0  # between looks whether the application is still there
GONE_LOOKS = 5  # in a row that find nothing of it


def end_with(app_name: str) -> None:
    """End this actor when Serve has had none of the application's replicas for some minutes."""
    threading.Thread(target=_look, args=(app_name,), name="lifetime", daemon=True).start()


def _look(app_name: str) -> None:
    missed = 0
    while missed < GONE_LOOKS:
        time.sleep(LOOK_SECONDS)
        try:
            names = actor_names()
        except RayError:  # the head does not answer
            continue
        is_there = any(name.startswith(f"SERVE_REPLICA::{app_name}#") for name in names)
        missed = 0 if is_there else missed + 1
    ray.kill(ray.get_runtime_context().current_actor)
