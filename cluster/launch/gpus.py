"""Whether a cluster has, or will have, the GPUs that the engines of an application need."""

from collections.abc import Sequence

import ray

from cluster.checkpoint.plan import check_device
from cluster.download.models import planned
from cluster.workers.nodes import alive_nodes
from cluster.workers.placement import has_gpus, lacking_places
from engine.config import EngineConfig
from engine.errors import InvalidConfig


def settled(config: EngineConfig, max_gpus: int | None) -> EngineConfig:
    """With what all its engines will use: where `auto` is given for the device, nodes that are
    still to come, or are lost for a while, would decide it for each engine anew. `max_gpus`: see
    `check_gpus`.

    Where the CPU computes, one rank has a process of its own, too: beside the engine's and the
    event loop's threads it would wait for the interpreter between any two kernels. On a GPU the
    kernels are on their way before that.
    """
    device = config.device
    if device == "auto" and ray.is_initialized():
        on_gpus = has_gpus(config) or (max_gpus or 0) >= config.world_size
        device = "cuda" if on_gpus else "cpu"
    backend = config.distributed_executor_backend
    if backend == "auto" and device == "cpu":
        backend = "ray"
    return config.model_copy(update={"device": device, "distributed_executor_backend": backend})


def planned_where_it_runs(config: EngineConfig, max_gpus: int | None) -> EngineConfig:
    """`config` once it is planned, `settled` and known to fit its device. Raises InvalidConfig."""
    config, plan = planned(config)
    config = settled(config, max_gpus)
    check_device(config, config.device, plan.dtypes)
    return config


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
        if (max_gpus or 0) <= now:  # otherwise nodes are still to come
            _check_places([(config, number) for config, number, _ in needs])
        return
    each = ", ".join(f"{number} engine(s) of {config.model_name} × {config.world_size}" for config, number, _ in needs)
    there = f"the cluster has {now}" if max_gpus is None else f"the cluster has {now} and max_gpus={max_gpus}"
    raise InvalidConfig(
        f"{each}: {wanted} GPU(s) are needed, and {there}; lower num_engines or tensor_parallel_size, or, if nodes are "
        "still to come, set max_gpus to what all will have"
    )


def _check_places(engines: Sequence[tuple[EngineConfig, int]]) -> None:
    nodes = alive_nodes()
    for config, number in engines:
        lack = lacking_places(config, number, nodes)
        if lack is not None:
            raise InvalidConfig(
                f"{lack}; correct what the nodes are to have, or, if some are still to come, set max_gpus"
            )
