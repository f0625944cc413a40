"""Which receivers there are: one of a model on each node that has ranks of it and was to join a
group. They outlive gateways and engines, so that a rank or a replica that starts later can read
what was broadcast before.
"""

from contextlib import suppress
from typing import Any

from cluster.actors.named import actor_names, end_actor, find_actor, start_actor
from cluster.weights.groups.receiver import MAX_CONCURRENCY, Receiver


def start_receiver(app_name: str, deployment: str, node_id: str) -> Any:
    """The model's one on that node, made if there is none."""
    name = _prefix(app_name, deployment) + node_id
    return start_actor(Receiver, name, app_name, node_id=node_id, max_concurrency=MAX_CONCURRENCY)


def running_receivers(app_name: str, deployment: str) -> list[Any]:
    """Of a model's engines. Asks Ray, which may raise RayError."""
    found = []
    for name in _names(_prefix(app_name, deployment)):
        with suppress(ValueError):  # it has just ended
            found.append(find_actor(name))
    return found


def end_receivers(app_name: str) -> None:
    """Of the application, and the weights that they hold."""
    for name in _names(_prefix(app_name)):
        end_actor(name)


def _names(prefix: str) -> list[str]:
    return [name for name in actor_names() if name.startswith(prefix)]


def _prefix(app_name: str, deployment: str | None = None) -> str:
    """Of names. Separated as Serve separates those of replicas: hyphens are in either name."""
    return f"squadron-weights::{app_name}#" + ("" if deployment is None else f"{deployment}#")
