"""Whether each node by itself is fit to serve."""

from collections.abc import Iterator, Sequence

from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.finding import Finding, failure, ok, warning
from cluster.doctor.need import Need, may_be_on
from cluster.memory import human
from cluster.workers.nodes import Node
from cluster.workers.placement import has_gpus

LEAST_SHM = 128 << 20  # for Ray's object store and for groups of CPU ranks; without it they are slower
LEAST_SHM_WITH_GPUS = 1 << 30  # NCCL's ranks of a node exchange through it, and fail without
LEAST_OPEN_FILES = 8192  # two for each connection
LEAST_MEMORY = 1 << 30  # for Ray's processes, a gateway and a driver
CHOOSERS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # name interfaces, with commas between


def check_shm(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    has_failed = False
    for node in nodes:
        least, kind = (LEAST_SHM_WITH_GPUS, failure) if node.gpus else (LEAST_SHM, warning)
        if node.shm_free < least:
            has_failed = True
            yield kind(
                "shm",
                f"/dev/shm of {node.address} has {human(node.shm_free)} free of {human(node.shm_total)}; "
                f"{human(least)} are needed",
                "docker run --shm-size=2g; in Kubernetes an emptyDir with medium: Memory at /dev/shm; else "
                "mount -o remount,size=2g /dev/shm",
            )
    if not has_failed:
        yield ok("shm", f"{human(min(node.shm_free for node in nodes))} or more free in /dev/shm")


def check_shared(needs: Sequence[Need], facts: Sequence[NodeFacts], nodes: Sequence[Node]) -> Iterator[Finding]:
    """Whether blocks that engines hand over find the room in /dev/shm that the configuration gives
    them: a folder of each kind for each model, half of what there is at most.
    """
    there = {node.node_id: node for node in nodes}
    for each in facts:
        here = [need for need in needs if may_be_on(there[each.node_id], need.config)]
        folders = [size for need in here for size in _folders(need)]
        if max(folders, default=0) > each.shm_total // 2 or sum(folders) > each.shm_free:
            yield warning(
                "shm",
                f"/dev/shm of {each.address} has {human(each.shm_free)} free of {human(each.shm_total)}; blocks that "
                f"engines hand over may take {human(sum(folders))}, a folder half of it all at most",
                f"give it {human(2 * sum(folders))} (docker run --shm-size, a size limit of the emptyDir), or lower "
                "drain_memory and prefill_memory: what finds no room is computed again",
            )


def _folders(need: Need) -> list[int]:
    """Bytes of each; on CPUs the cache's size is known, and an engine leaves no more than that."""
    whole = need.config.world_size * need.plan.cache_bytes
    return [need.drain_bytes if has_gpus(need.config) else min(need.drain_bytes, whole), need.prefill_bytes]


def check_memory(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """That there is any: `room` says whether models fit."""
    poor = [node for node in nodes if node.memory_available < LEAST_MEMORY]
    for node in poor:
        yield failure(
            "memory",
            f"{node.address} has {human(node.memory_available)} available of {human(node.memory_total)}; "
            f"{human(LEAST_MEMORY)} are needed before any weights",
            "end other processes of the node, or raise the container's memory limit",
        )
    if not poor:
        yield ok("memory", f"{human(min(node.memory_available for node in nodes))} or more available on each node")


def check_processes(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Limits and niceness that worker processes inherit from Ray's."""
    has_failed = False
    for node in nodes:
        if node.open_files < LEAST_OPEN_FILES:
            has_failed = True
            yield warning(
                "limits",
                f"processes of {node.address} may open {node.open_files} files; with fewer than {LEAST_OPEN_FILES}, "
                "HAProxy takes few connections",
                "ulimit -n 65536 before `ray start` or `squadron serve`",
            )
        if node.niceness > 0:
            has_failed = True
            yield warning(
                "limits",
                f"workers of {node.address} run at nice {node.niceness}: any other process delays them",
                "set RAY_worker_niceness=0 before `ray start`, and do not run that by `nice`",
            )
    if not has_failed:
        yield ok("limits", f"{min(node.open_files for node in nodes)} open files or more, no niceness")


def check_interfaces(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    has_failed = False
    for node in nodes:
        for text, remedy in _wrong_interfaces(node, is_alone=len(nodes) == 1):
            has_failed = True
            yield failure("interfaces", text, remedy)
    if not has_failed:
        named = {each.name for node in nodes for each in node.interfaces if node.address in each.addresses}
        yield ok("interfaces", f"the nodes' addresses are those of {', '.join(sorted(named)) or 'loopback'}")


def _wrong_interfaces(node: NodeFacts, *, is_alone: bool) -> Iterator[tuple[str, str]]:
    """What is, and its remedy."""
    addresses = [address for each in node.interfaces for address in each.addresses]
    start = "give `ray start` the address by which other nodes reach it: --node-ip-address"
    if node.address not in addresses:
        yield (
            f"no interface of {node.address} has this address; there are {', '.join(map(str, node.interfaces))}",
            start,
        )
    elif (node.address == "::1" or node.address.startswith("127.")) and not is_alone:
        yield f"{node.address} is loopback's, and there are other nodes", start
    names = {each.name for each in node.interfaces}
    for variable in CHOOSERS:
        wanted = node.environment.get(variable, "")
        is_nccls = variable.startswith("NCCL")  # the others know neither "^" and "=" nor prefixes
        if is_nccls and wanted.startswith("^"):  # all but these
            continue
        takes_prefixes = is_nccls and not wanted.startswith("=")
        for name in filter(None, (part.strip("= ") for part in wanted.split(","))):
            if name not in names and not (takes_prefixes and any(each.startswith(name) for each in names)):
                yield (
                    f"{variable}={wanted} on {node.address}, which has {', '.join(sorted(names))}",
                    f"unset {variable}, or name an interface of that node",
                )
