"""Whether a second engine of the same kind has room: its needs against what is free."""

import asyncio
from collections.abc import Callable, Collection

import ray
from ray._private.state import available_resources_per_node

from cluster.checkpoint.size import size_up
from cluster.memory import available_memory, human
from cluster.workers.nodes import alive_nodes, is_meant
from cluster.workers.nodes_memory import bytes_per_block
from cluster.workers.placement import Bundle, bundles_of, has_gpus
from engine.config import EngineConfig

LOOK_SECONDS = 0.2  # between looks
ROOM_SECONDS = 2.0  # for Ray to say what is free: it tells of what has been given back some time later
PROCESS_BYTES = 300 << 20  # of a driver or worker beside weights and cache: Python, torch, Ray


def lacking(config: EngineConfig, num_blocks: int, full_nodes: Collection[str] = ()) -> str | None:
    """What a second engine of that configuration lacks beside the one in this process, a line; None
    if there is room. `num_blocks`: of this one's cache; `full_nodes`: ids of nodes on which it may
    not be. Asks Ray, which may block.

    What is free in memory is measured on this node only, and where the CPU computes.
    """
    meant = {node.node_id for node in alive_nodes() if is_meant(node, config)}.difference(full_nodes)
    free = {node: resources for node, resources in available_resources_per_node().items() if node in meant}
    here = free.get(ray.get_runtime_context().get_node_id(), {})
    bundles = bundles_of(config)
    if not fit(bundles, list(free.values())):
        return f"it needs {_sum(bundles)}, each part on one node, and free are {_sum(list(free.values()))}"
    if has_gpus(config) or not any(fit([bundle], [here]) for bundle in bundles):
        return None
    needed, available = memory_bytes(config, num_blocks), available_memory()
    if needed > available:
        return f"it needs {human(needed)} of memory, and {human(available)} are available here"
    return None


async def still_lacking(look: Callable[[], str | None]) -> str | None:
    """What `look` has found lacking for ROOM_SECONDS; None once it finds nothing. `look` may block,
    and runs in another thread.
    """
    lack = None
    try:
        async with asyncio.timeout(ROOM_SECONDS):
            while (lack := await asyncio.to_thread(look)) is not None:
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        return lack or f"Ray did not say within {ROOM_SECONDS:g} s what is free"
    except Exception as error:  # whatever Ray may raise while it ends
        return f"it is not known what is free: {type(error).__name__}: {error}"
    return None


def memory_bytes(config: EngineConfig, num_blocks: int) -> int:
    """What an engine with such a cache takes, on all its ranks."""
    num_workers = 0 if config.runs_in_process else config.world_size + config.num_spare_workers
    weights = config.world_size * size_up(config).weight_bytes
    return weights + num_blocks * bytes_per_block(config) + (1 + num_workers) * PROCESS_BYTES


def fit(bundles: list[Bundle], nodes: list[Bundle]) -> bool:
    """Whether every bundle finds a node with as much, the largest first, each on the fullest node
    that has room for it.
    """
    rest = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=_size, reverse=True):
        able = [node for node in rest if all(node.get(name, 0) >= amount for name, amount in bundle.items())]
        if not able:
            return False
        node = min(able, key=_size)
        node.update({name: node[name] - amount for name, amount in bundle.items() if amount})
    return True


def _size(resources: Bundle) -> tuple[float, float]:
    return resources.get("GPU", 0), resources.get("CPU", 0)


def _sum(resources: list[Bundle]) -> str:
    gpus, cpus = (sum(sizes) for sizes in zip(*map(_size, resources), strict=True)) if resources else (0, 0)
    return f"{gpus:g} GPU(s) and {cpus:g} CPU(s)"
