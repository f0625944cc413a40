"""Whether the weights and caches of all ranks fit into the memory of their nodes."""

from collections import Counter
from collections.abc import Sequence

from cluster.checkpoint.size import size_up
from cluster.memory import check_memory
from engine.config import EngineConfig


def check_nodes(config: EngineConfig, nodes: Sequence[str], available: Sequence[int]) -> None:
    """`nodes` and `available` (bytes there) of each rank. Raises InvalidConfig, naming the node."""
    plan = size_up(config)
    room = dict(zip(nodes, available, strict=True))
    for node, num_ranks in Counter(nodes).items():
        check_memory(f"node {node}", num_ranks, plan.weight_bytes, plan.cache_bytes + plan.adapter_bytes, room[node])


def bytes_per_block(config: EngineConfig) -> int:
    """Of cache, on all ranks together, taking the fullest stage for all."""
    return size_up(config).cache_bytes_per_token * config.block_size * config.world_size
