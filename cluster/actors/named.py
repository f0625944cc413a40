"""Actors that the whole cluster finds by their names, which are among those of Serve's own."""

from contextlib import suppress
from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

NAMESPACE = "serve"  # where Serve names its actors


def actor_names() -> list[str]:
    """Of all that run. Asks Ray, which may raise RayError."""
    return [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]


def find_actor(name: str) -> Any:
    """Its handle. Asks Ray, which takes a while. Raises ValueError if it is not there."""
    return ray.get_actor(name, namespace=NAMESPACE)


def start_actor(kind: type, name: str, *arguments: Any, node_id: str | None = None, **options: Any) -> Any:
    """The one of that name, made if there is none. It takes no CPUs of Ray's, and outlives whoever
    made it, but not its node: `node_id`, or any. `options`: further ones of Ray's.
    """
    if node_id is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
    made = ray.remote(kind).options(
        name=name, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, num_cpus=0, **options
    )
    return made.remote(*arguments)


def end_actor(name: str) -> None:
    """End its process; of no effect if it has gone."""
    with suppress(ValueError):
        ray.kill(find_actor(name))
