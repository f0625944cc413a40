"""Whether weights and caches fit: into each GPU, or into nodes, with all that is to be there."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.checkpoint.size import Plan
from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.finding import Finding, failure, ok, warning
from cluster.doctor.need import Need
from cluster.memory import LEAST_WEIGHT_SHARE, human
from cluster.workers.nodes import Node, is_meant
from cluster.workers.placement import CPUS_PER_WORKER, has_gpus
from engine.config import EngineConfig

SMALLER = "lower max_model_len or kv_cache_memory_bytes, raise tensor_parallel_size, or choose a quantization"
APART = (
    "keep engines apart by node_labels, or start Ray with fewer CPUs there (--num-cpus): each rank takes "
    f"{CPUS_PER_WORKER:g} of one"
)


@dataclass(frozen=True, slots=True)
class Stage:
    """Ranks that share a node."""

    num_bytes: int  # that they need at least, together
    num_cpus: float
    nodes: frozenset[str]  # ids of those on which they may be


@dataclass(frozen=True, slots=True)
class Space:
    """What a node has."""

    num_bytes: int
    num_cpus: float

    def has(self, stage: Stage) -> bool:
        return stage.num_bytes <= self.num_bytes and stage.num_cpus <= self.num_cpus

    def without(self, stage: Stage) -> "Space":
        return Space(self.num_bytes - stage.num_bytes, self.num_cpus - stage.num_cpus)


def check_fits(
    needs: Sequence[Need], facts: Sequence[NodeFacts], nodes: Sequence[Node], *, is_serving: bool
) -> Iterator[Finding]:
    """Whether the weights and caches of all ranks fit. `is_serving`: something runs already,
    perhaps this, and takes of what is available. Of what has no node or no GPU that is meant other
    checks tell: there a smaller one would be no remedy.
    """
    on_cpus = []
    for need in needs:
        meant = {node.node_id for node in nodes if is_meant(node, need.config)}
        theirs = [each for each in facts if each.node_id in meant]
        if not has_gpus(need.config):
            on_cpus += [need] if theirs else []
        elif any(each.gpus for each in theirs):
            yield _gpu_memory(need, theirs)
    if on_cpus:
        yield _host_memory(on_cpus, facts, nodes, is_serving=is_serving)


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


def _host_memory(
    needs: Sequence[Need], facts: Sequence[NodeFacts], nodes: Sequence[Node], *, is_serving: bool
) -> Finding:
    cpus = {node.node_id: node.resources.get("CPU", 0.0) for node in nodes}
    spaces = {
        each.node_id: Space(each.memory_total if is_serving else each.memory_available, cpus.get(each.node_id, 0.0))
        for each in facts
    }
    addresses = {each.node_id: each.address for each in facts}
    where = "there in all" if is_serving else "available"
    stages = [stage for need in needs for stage in _stages(need, nodes)]
    text = f"{'; '.join(map(str, needs))}: {human(_bytes(stages))} of memory are needed at least"
    if not can_be_placed(stages, spaces):
        there = ", ".join(f"{human(space.num_bytes)} on {addresses[node]}" for node, space in spaces.items())
        return failure(
            "fits", f"{text}; no way to place {_sizes(stages)}, each on one node: {there} are {where}", SMALLER
        )
    for node, space in spaces.items():
        together = most_together(stages, node, space)
        if together > space.num_bytes:
            may = f"Ray counts no memory, and may place {human(together)} on {addresses[node]}"
            return warning("fits", f"{text}; {may}, where {human(space.num_bytes)} are {where}", APART)
    return ok("fits", f"{text}, and {human(sum(space.num_bytes for space in spaces.values()))} are {where}")


def _stages(need: Need, nodes: Sequence[Node]) -> list[Stage]:
    """Of all its engines."""
    config, plan = need.config, need.plan
    rank = int(LEAST_WEIGHT_SHARE * plan.weight_bytes + plan.cache_bytes + plan.adapter_bytes)
    num_ranks = config.tensor_parallel_size
    meant = frozenset(node.node_id for node in nodes if is_meant(node, config))
    stage = Stage(num_ranks * rank, num_ranks * CPUS_PER_WORKER, meant)
    return [stage] * (need.num_engines * config.pipeline_parallel_size)


def can_be_placed(stages: Iterable[Stage], spaces: Mapping[str, Space]) -> bool:
    """Whether each finds a node: those with the least choice first, then the largest, each on the
    fullest node that has room for it. `spaces`: by node.
    """
    rest = dict(spaces)
    for stage in sorted(stages, key=lambda stage: (len(stage.nodes), -stage.num_bytes)):
        able = [node for node, space in rest.items() if node in stage.nodes and space.has(stage)]
        if not able:
            return False
        node = min(able, key=lambda node: rest[node].num_bytes)
        rest[node] = rest[node].without(stage)
    return True


def most_together(stages: Iterable[Stage], node: str, space: Space) -> int:
    """The most bytes of stages for which that node has CPUs."""
    chosen, num_cpus = [], space.num_cpus
    for stage in sorted(stages, key=lambda stage: -stage.num_bytes):
        if node in stage.nodes and stage.num_cpus <= num_cpus:
            chosen.append(stage)
            num_cpus -= stage.num_cpus
    return _bytes(chosen)


def _bytes(stages: Iterable[Stage]) -> int:
    return sum(stage.num_bytes for stage in stages)


def _sizes(stages: Iterable[Stage]) -> str:
    counts = Counter(stage.num_bytes for stage in stages)
    return ", ".join(f"{count} x {human(size)}" for size, count in sorted(counts.items(), reverse=True))
