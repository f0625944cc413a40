"""Places ranks: a placement group with one bundle for each stage, so that a stage's
tensor-parallel ranks share a node.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from cluster.workers.nodes import KIND, Node, num_places
from engine.config import EngineConfig
from engine.errors import InvalidConfig

logger = logging.getLogger("squadron.executor")

# A fraction of a logical CPU, so that four workers and their gateway fit on a laptop of two cores.
CPUS_PER_WORKER = 0.25
DRIVER_CPUS = 0.25
GATEWAY_CPUS = 0.1
KIND_SHARE = 0.001  # as Ray takes of "accelerator_type:..." for an actor
PLACEMENT_SECONDS = 300  # an autoscaler may have to start machines
_PATIENCE_SECONDS = 5

Bundle = dict[str, float]


@dataclass(frozen=True, slots=True)
class Placement:
    """The resources of all ranks: a group, and each rank's bundle in it."""

    group: PlacementGroup
    is_own: bool  # created here, so also removed here
    num_cpus: float  # of each worker
    num_gpus: int
    bundles: list[int]


def has_gpus(config: EngineConfig) -> bool:
    """Whether workers get a GPU each: if configured, or with device=auto if the cluster has enough
    of them.
    """
    if config.accelerator_type is not None:
        return True
    if config.device != "auto":
        return config.device == "cuda"
    return ray.is_initialized() and bool(ray.cluster_resources().get("GPU", 0) >= config.world_size)


def make_bundles(config: EngineConfig) -> dict[str, Any]:
    """Options for the engine's Serve deployment, so that a replica owns its workers' resources
    too.
    """
    num_gpus = int(has_gpus(config))
    if config.runs_in_process:
        return {"ray_actor_options": {"num_cpus": DRIVER_CPUS, "num_gpus": num_gpus} | _on_which_node(config)}
    bundles = [{"CPU": DRIVER_CPUS}, *_stage_bundles(config, CPUS_PER_WORKER, num_gpus)]
    labels = {"placement_group_bundle_label_selector": [config.node_labels] * len(bundles)}
    return {
        "ray_actor_options": {"num_cpus": DRIVER_CPUS},
        "placement_group_bundles": bundles,
        "placement_group_strategy": "PACK",
        **(labels if config.node_labels else {}),
    }


def bundles_of(config: EngineConfig) -> list[Bundle]:
    """All that an engine takes, each on one node."""
    options = make_bundles(config)
    if "placement_group_bundles" in options:
        return list(options["placement_group_bundles"])
    driver = options["ray_actor_options"]
    return [{"CPU": driver["num_cpus"], "GPU": driver["num_gpus"]} | _kind_of_gpu(config)]


def lacking_places(config: EngineConfig, num_engines: int, nodes: Sequence[Node]) -> str | None:
    """What so many engines lack for which only these nodes are there, a line; None: no places."""
    wanted, there = num_engines * config.pipeline_parallel_size, num_places(config, nodes)
    if not has_gpus(config) or wanted <= there:
        return None
    wishes = [f"accelerator_type={config.accelerator_type}"] * (config.accelerator_type is not None)
    wishes += [f"node_labels={config.node_labels}"] * bool(config.node_labels)
    places = f"{wanted} place(s) of {config.tensor_parallel_size} GPU(s) on one node"
    where = f" with {' and '.join(wishes)}" if wishes else ""
    return f"{num_engines} engine(s) of {config.model_name} need {places}{where}, and the cluster has {there}"


def place(
    config: EngineConfig, *, cpus_per_worker: float = CPUS_PER_WORKER, timeout: int = PLACEMENT_SECONDS
) -> Placement:
    """Bundles for every rank: of the group that this process has from `make_bundles`, or of a new
    one.

    Raises InvalidConfig if the cluster has no room for a new one within `timeout` seconds.
    """
    num_gpus = int(has_gpus(config))
    bundles = _stage_bundles(config, cpus_per_worker, num_gpus)
    group = ray.util.get_current_placement_group()
    is_own = group is None or group.bundle_specs[1:] != bundles
    if is_own:
        labels = [config.node_labels] * len(bundles) if config.node_labels else None
        group = placement_group(bundles, strategy="PACK", bundle_label_selector=labels)
        try:
            _wait_for_room(group, bundles, timeout)
        except InvalidConfig:
            remove_placement_group(group)
            raise
    first = 0 if is_own else 1  # a replica's own bundle comes first
    of_rank = [first + rank // config.tensor_parallel_size for rank in range(config.world_size)]
    return Placement(group, is_own, cpus_per_worker, num_gpus, of_rank)


def is_placed(placement: Placement) -> bool:
    """Whether all bundles are on nodes, as far as Ray knows: it notices a lost node with a
    delay.
    """
    return bool(placement_group_table(placement.group)["state"] == "CREATED")


def give_back(placement: Placement) -> None:
    """Remove the group, with whatever still runs in it, if it was created here."""
    if placement.is_own:
        remove_placement_group(placement.group)


def _stage_bundles(config: EngineConfig, cpus_per_worker: float, num_gpus: int) -> list[Bundle]:
    workers = config.tensor_parallel_size
    bundle = {"CPU": workers * cpus_per_worker}
    if num_gpus:
        bundle |= {"GPU": float(workers * num_gpus)} | _kind_of_gpu(config)
    return [bundle] * config.pipeline_parallel_size


def _kind_of_gpu(config: EngineConfig) -> Bundle:
    """The resource by which Ray tells kinds of GPUs apart: nodes of the kind have 1 of it."""
    return {KIND + config.accelerator_type: KIND_SHARE} if config.accelerator_type is not None else {}


def _on_which_node(config: EngineConfig) -> dict[str, Any]:
    """Options for the actor of an engine without workers."""
    kind = {"accelerator_type": config.accelerator_type} if config.accelerator_type is not None else {}
    return kind | ({"label_selector": config.node_labels} if config.node_labels else {})


def _wait_for_room(group: PlacementGroup, bundles: list[Bundle], timeout: int) -> None:
    if group.wait(min(timeout, _PATIENCE_SECONDS)):
        return
    logger.info("waiting for room for %s in the cluster; free are %s", bundles, free_resources())
    if not group.wait(timeout):
        raise InvalidConfig(f"the cluster has no room for {bundles}, each on one node; free are {free_resources()}")


def free_resources() -> Bundle:
    """Unused CPUs and GPUs of the cluster."""
    return {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
