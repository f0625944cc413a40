"""Whether all nodes are alike where an engine's ranks, or Ray, need it."""

from collections.abc import Iterator, Sequence

from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.finding import Finding, failure, ok, warning

PINNED = (
    "install the same versions everywhere: one image, or `pip install --constraint constraints.txt`; Ray refuses "
    "another patch level of itself or of Python"
)


def check_versions(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Against the first node."""
    first, has_failed = nodes[0], False
    for node in nodes[1:]:
        for name in sorted(first.versions.keys() | node.versions.keys()):
            here, there = first.versions.get(name, "none"), node.versions.get(name, "none")
            if here != there:
                has_failed = True
                yield failure("versions", f"{name} is {there} on {node.address} and {here} on {first.address}", PINNED)
    if not has_failed:
        main = ", ".join(
            f"{name} {first.versions.get(name, 'none')}" for name in ("squadron", "python", "ray", "torch")
        )
        yield ok("versions", f"{main} on {_count(nodes)}")


def check_code(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Versions may be the same, and sources not."""
    first = nodes[0]
    others = [node for node in nodes if node.code != first.code]
    for node in others:
        yield failure(
            "code",
            f"{node.address} has other sources of Squadron ({node.code}) than {first.address} ({first.code})",
            "give every node the same wheel, image or checkout (`ray up` again copies this one)",
        )
    if not others:
        yield ok("code", f"{first.code} on {_count(nodes)}")


def check_gpu_kinds(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Other GPUs compute other bits, and engines on them cannot continue each other's streams."""
    kinds = sorted({gpu.name for node in nodes for gpu in node.gpus})
    drivers = sorted({gpu.driver for node in nodes for gpu in node.gpus})
    if len(kinds) > 1:
        yield warning(
            "gpus",
            f"the cluster has different GPUs: {', '.join(kinds)}",
            "set accelerator_type, so that a model's engines are all on one kind",
        )
    if len(drivers) > 1:
        yield warning("gpus", f"different drivers: {', '.join(drivers)}", "install one driver on all nodes")


def check_networks(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """MTUs of the interfaces that have the nodes' addresses."""
    mtus = {each.mtu for node in nodes for each in node.interfaces if node.address in each.addresses}
    if len(mtus) > 1:
        yield warning(
            "interfaces",
            f"the nodes' networks have different MTUs: {', '.join(map(str, sorted(mtus)))}",
            "set the same MTU on all of them: large packets may be lost between them",
        )


def _count(nodes: Sequence[NodeFacts]) -> str:
    return f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"
