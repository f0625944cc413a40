"""How worker processes become the ranks of an epoch: they meet, agree on what to compute with, and
load their shards.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.download.choice import shares
from cluster.sockets import LOOPBACK
from cluster.workers.group.agreement import Agreed, agree, agreed_on
from cluster.workers.group.calls import RankCalls
from cluster.workers.nodes_memory import check_nodes
from cluster.workers.processes.actor import Loaded, Seat
from cluster.workers.processes.process import WorkerProcess
from engine.config import EngineConfig
from engine.executor import Weights, smallest

logger = logging.getLogger("squadron.executor")


@dataclass(frozen=True, slots=True)
class Seated:
    """What the ranks have in common; numbers of blocks are those of the rank with the fewest."""

    agreed: Agreed
    num_gpu_blocks: int
    num_cpu_blocks: int


def take_seats(
    config: EngineConfig,
    epoch: int,
    processes: Sequence[WorkerProcess],
    calls: RankCalls,
    before: Agreed | None,
    weights: Weights | None = None,
) -> Seated:
    """Seat the processes, in order of rank. `before`: what earlier epochs agreed on, which is kept.
    `weights`: that all of them have then; None: those that are configured.

    Raises InvalidConfig or WorkerLost.
    """
    facts = [process.facts for process in processes]
    nodes = [fact.address for fact in facts]
    node_ids = [fact.node_id for fact in facts]
    is_one_node = len(set(node_ids)) == 1
    hosts = [LOOPBACK if is_one_node else fact.address for fact in facts]
    num_ranks = [node_ids.count(node_id) for node_id in node_ids]
    port: int | None = None  # of a rank alone: a store listens, and asks nobody who they are
    if len(processes) > 1:
        (port,) = calls.results(lambda process, rank: process.actor.open_store.remote(hosts[0]), [0])
    for process in processes:
        process.is_loading = True
    if before is None and config.device == "cpu":  # nothing is loaded yet
        check_nodes(config, nodes, calls.results(lambda process, rank: process.actor.available_memory.remote()))
    shared = shares(node_ids, config.tensor_parallel_size)
    offers = calls.results(lambda process, rank: process.actor.offer.remote(config, shared[rank]))
    level = agree(offers, nodes, before.level if before is not None else None)
    loaded: list[Loaded] = calls.results(
        lambda process, rank: process.actor.take_seat.remote(
            config,
            Seat(epoch, rank, hosts[rank], num_ranks[rank], hosts[0], port, level, weights, shared[rank]),
        )
    )
    for rank, (process, fact, worker) in enumerate(zip(processes, facts, loaded, strict=True)):
        process.is_loading = False
        if not process.is_seated:
            logger.info("worker %d, process %d on node %s: %s", rank, fact.pid, fact.address, worker.report)
    arithmetics, samples = [each.arithmetic for each in loaded], [each.sample for each in loaded]
    agreed = agreed_on(level, arithmetics, samples, nodes, before)
    return Seated(agreed, *smallest([(each.num_gpu_blocks, each.num_cpu_blocks) for each in loaded]))
