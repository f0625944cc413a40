"""Which receivers there are: one of a model on each node that has ranks of it and was to join a
group. They outlive gateways and engines, so that a rank or a replica that starts later can read
what was broadcast before.
"""

from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.weights.groups.lifetime import NAMESPACE
from cluster.weights.groups.receiver import MAX_CONCURRENCY, Receiver


def start_receiver(app_name: str, deployment: str, node_id: str) -> Any:
    """The model's one on that node, made if there is none."""
    return (
        ray.remote(Receiver)
        .options(
            name=f"{_prefix(app_name)}{deployment}-{node_id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=MAX_CONCURRENCY,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(app_name)
    )


def running_receivers(app_name: str, deployment: str | None = None) -> list[Any]:
    """Of a model's engines, or of all. Asks Ray, which may raise RayError."""
    prefix = _prefix(app_name) + (f"{deployment}-" if deployment is not None else "")
    found = []
    for actor in list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(prefix):
            try:
                found.append(ray.get_actor(actor["name"], namespace=NAMESPACE))
            except ValueError:  # it has just ended
                continue
    return found


def end_receivers(app_name: str) -> None:
    """Of the application, and the weights that they hold."""
    for receiver in running_receivers(app_name):
        ray.kill(receiver)


def _prefix(app_name: str) -> str:
    return f"squadron-weights-{app_name}-"
