"""Whether what is to run fits on the nodes: GPUs, Ray's CPUs, and memory."""

from collections import Counter
from collections.abc import Iterator, Sequence

from cluster.checkpoint.size import Plan
from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.finding import Finding, failure, ok, warning
from cluster.doctor.need import Need
from cluster.memory import LEAST_WEIGHT_SHARE, human
from cluster.workers.nodes import Node, is_meant
from cluster.workers.placement import Bundle, bundles_of, has_gpus, lacking_places
from cluster.workers.room_beside import fit
from engine.config import EngineConfig

MORE = "add nodes, or lower num_engines, tensor_parallel_size or pipeline_parallel_size"
SMALLER = "lower max_model_len or kv_cache_memory_bytes, raise tensor_parallel_size, or choose a quantization"


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


def check_fits(
    needs: Sequence[Need], facts: Sequence[NodeFacts], nodes: Sequence[Node], *, is_serving: bool
) -> Iterator[Finding]:
    """Whether a rank's weights and cache fit, where ranks are as evenly spread as can be.
    `is_serving`: something runs already, perhaps this, and takes of what is available.
    """
    for need in needs:
        meant = {node.node_id for node in nodes if is_meant(node, need.config)}
        there_for_it = [each for each in facts if each.node_id in meant]
        if has_gpus(need.config):
            yield _gpu_memory(need, there_for_it)
        else:
            there = sum(each.memory_total if is_serving else each.memory_available for each in there_for_it)
            yield _host_memory(need, there, "there in all" if is_serving else "available")


def _gpu_memory(need: Need, facts: Sequence[NodeFacts]) -> Finding:
    name, config = need.config.model_name, need.config
    totals = [gpu.total for each in facts for gpu in each.gpus]
    if totals and not any(totals):
        return ok("fits", f"{name}: not known, since these GPUs do not tell their memory")
    smallest = min(filter(None, totals), default=0)
    usable = int(smallest * config.gpu_memory_utilization)
    needed = need.plan.weight_bytes + need.plan.adapter_bytes + _least_cache(config, need.plan)
    text = f"{name}: a rank needs {human(needed)} at least, and the smallest GPU offers {human(usable)}"
    return ok("fits", text) if needed <= usable else failure("fits", text, SMALLER)


def _least_cache(config: EngineConfig, plan: Plan) -> int:
    """For one sequence of the longest length; as configured, if it is."""
    is_given = config.kv_cache_memory_bytes is not None or config.num_gpu_blocks_override is not None
    return plan.cache_bytes if is_given else plan.cache_bytes_per_token * plan.max_model_len


def _host_memory(need: Need, there: int, where: str) -> Finding:
    plan = need.plan
    needed = need.num_ranks * int(LEAST_WEIGHT_SHARE * plan.weight_bytes + plan.cache_bytes + plan.adapter_bytes)
    text = f"{need}: {human(needed)} of memory are needed at least, and {human(there)} are {where}"
    return ok("fits", text) if needed <= there else failure("fits", text, SMALLER)
