"""Whether what is to run has room on the nodes: GPUs, and Ray's CPUs."""

from collections import Counter
from collections.abc import Iterator, Sequence

from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.finding import Finding, failure, ok, warning
from cluster.doctor.need import Need
from cluster.workers.nodes import Node
from cluster.workers.placement import Bundle, bundles_of, lacking_places
from cluster.workers.room_beside import fit

MORE = "add nodes, or lower num_engines, tensor_parallel_size or pipeline_parallel_size"


def check_gpus_seen(nodes: Sequence[NodeFacts], resources: dict[str, Bundle]) -> Iterator[Finding]:
    """What Ray counts against what the driver shows. `resources`: in all, by node."""
    has_failed = False
    for node in nodes:
        counted = int(resources.get(node.node_id, {}).get("GPU", 0))
        if 0 < counted < len(node.gpus):
            has_failed = True
            yield warning(
                "gpus",
                f"Ray counts {counted} GPU(s) on {node.address}, of the {len(node.gpus)} that the driver shows",
                "if others use the rest, nothing; otherwise CUDA_VISIBLE_DEVICES and --num-gpus of `ray start`",
            )
        elif counted != len(node.gpus):
            has_failed = True
            yield failure(
                "gpus",
                f"Ray counts {counted} GPU(s) on {node.address}, and the driver shows {len(node.gpus)}",
                "start Ray where the GPUs are visible (nvidia-container-toolkit, nvidia.com/gpu in the pod's limits, "
                "CUDA_VISIBLE_DEVICES), or with the right --num-gpus",
            )
    if not has_failed:
        found = Counter(gpu.name for node in nodes for gpu in node.gpus)
        kinds = ", ".join(f"{number} {name}" for name, number in sorted(found.items()))
        yield ok("gpus", kinds or "none: the CPUs compute")


def check_room(needs: Sequence[Need], nodes: Sequence[Node]) -> Iterator[Finding]:
    """Whether Ray could place all engines on an empty cluster."""
    bundles = [bundle for need in needs for _ in range(need.num_engines) for bundle in bundles_of(need.config)]
    resources = [node.resources for node in nodes]
    wanted, there = (sum(each.get("GPU", 0) for each in sizes) for sizes in (bundles, resources))
    names = "; ".join(map(str, needs))
    lack = next(filter(None, (lacking_places(need.config, need.num_engines, nodes) for need in needs)), None)
    if wanted > there:
        yield failure("room", f"{names}: {wanted:g} GPU(s) are needed, and the cluster has {there:g}", MORE)
    elif lack is not None:
        yield failure("room", lack, MORE)
    elif not fit(bundles, resources):
        sizes = ", ".join(str(bundle) for bundle in sorted(bundles, key=str, reverse=True)[:8])
        yield failure("room", f"{names}: no way to place {sizes}, each on one node", MORE)
    else:
        yield ok("room", f"{names}; {wanted:g} of {there:g} GPU(s)")
