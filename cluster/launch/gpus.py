"""Whether a cluster has as many GPUs as the engines of an application need."""

from collections.abc import Sequence

import ray

from cluster.workers.placement import has_gpus
from engine.config import EngineConfig
from engine.errors import InvalidConfig


def check_gpus(engines: Sequence[tuple[EngineConfig, int]], max_gpus: int | None) -> None:
    """`engines`: each model's configuration and number of engines; `max_gpus`: what the cluster
    will have once all its nodes are there, None: what it has. Raises InvalidConfig: otherwise an
    engine would wait for a place for ever.
    """
    if not ray.is_initialized():
        return
    needs = [(config, number, number * config.world_size) for config, number in engines if has_gpus(config)]
    wanted, now = sum(gpus for *_, gpus in needs), int(ray.cluster_resources().get("GPU", 0))
    if wanted <= max(now, max_gpus or 0):
        return
    each = ", ".join(f"{number} engine(s) of {config.model_name} × {config.world_size}" for config, number, _ in needs)
    there = f"the cluster has {now}" if max_gpus is None else f"the cluster has {now} and max_gpus={max_gpus}"
    raise InvalidConfig(
        f"{each}: {wanted} GPU(s) are needed, and {there}; lower num_engines or tensor_parallel_size, or, if nodes are "
        "still to come, set max_gpus to what all will have"
    )
