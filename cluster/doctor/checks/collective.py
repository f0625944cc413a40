"""Has processes on the nodes that an engine would be given exchange numbers, as its ranks would."""

from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.doctor.checks.member import Member, hosts_of
from cluster.doctor.facts.nodes import Node, on_node
from cluster.doctor.finding import Finding, failure, ok, warning
from cluster.workers.placement import CPUS_PER_WORKER, Placement, give_back, has_gpus, place
from cluster.workers.ray_errors import reason_of
from engine.config import EngineConfig
from engine.errors import InvalidConfig

SECONDS = 2.0
PLACE_SECONDS = 10
FINISH_SECONDS = 120.0  # for processes to start, import torch, meet and exchange
REMEDY = (
    "look for a firewall between these nodes, a wrong GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, and too little "
    "/dev/shm; NCCL_DEBUG=INFO tells what NCCL does"
)


def check_collective(config: EngineConfig | None, nodes: Sequence[Node]) -> Iterator[Finding]:
    """As the ranks of `config`, where Ray would place them now; None: one process on each node, and
    two if there is one node only.
    """
    if config is None:
        yield _on_nodes(nodes)
        return
    if config.world_size == 1:
        yield ok("collective", f"{config.model_name} has one rank, which exchanges nothing")
        return
    try:
        placement = place(config, timeout=PLACE_SECONDS)
    except InvalidConfig as error:
        yield warning(
            "collective",
            f"not tried with {config.world_size} ranks: {error}",
            "if an engine runs there already, nothing: otherwise see `room` above",
        )
        return
    try:
        yield _in_placement(config, placement)
    finally:
        give_back(placement)


def _on_nodes(nodes: Sequence[Node]) -> Finding:
    where = list(nodes) if len(nodes) > 1 else [*nodes, *nodes]
    return _exchanged([on_node(node.node_id, Member) for node in where], (1, len(where)), "cpu")


def _in_placement(config: EngineConfig, placement: Placement) -> Finding:
    actors = [
        ray.remote(Member).options(
            num_cpus=CPUS_PER_WORKER,
            num_gpus=placement.num_gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement.group, bundle),
        )
        for bundle in placement.bundles
    ]
    sizes = config.tensor_parallel_size, config.pipeline_parallel_size
    return _exchanged(actors, sizes, "cuda" if has_gpus(config) else "cpu")


def _exchanged(actors: Sequence[Any], sizes: tuple[int, int], device: str) -> Finding:
    members = [actor.remote() for actor in actors]
    places: list[tuple[str, str]] = []
    try:
        places = ray.get([member.address.remote() for member in members], timeout=FINISH_SECONDS)
        hosts = hosts_of(places)
        store = hosts[0], ray.get(members[0].open_store.remote(hosts[0]), timeout=FINISH_SECONDS)
        calls = [
            member.exchange.remote(sizes, rank, device, hosts[rank], store, SECONDS)
            for rank, member in enumerate(members)
        ]
        seen = ray.get(calls, timeout=FINISH_SECONDS)
    except GetTimeoutError:
        return failure("collective", f"{_who(places, len(members))} did not finish within {FINISH_SECONDS:g} s", REMEDY)
    except RayError as error:
        return failure("collective", f"{_who(places, len(members))}: {reason_of(error)}", REMEDY)
    finally:
        for member in members:
            ray.kill(member)
    first = seen[0]
    rate = f"{first.rounds / first.seconds:,.0f} exchanges of {first.num_bytes >> 10} KiB a second"
    text = f"{_who(places, len(members))}: {rate} ({first.device})"
    return ok("collective", text)


def _who(places: Sequence[tuple[str, str]], num_ranks: int) -> str:
    where = f" on {', '.join(sorted({address for _, address in places}))}" if places else ""
    return f"{num_ranks} ranks{where}"
