"""The nodes of a Ray cluster, and on which of them an engine's ranks may be."""

from collections.abc import Iterable
from dataclasses import dataclass

import ray

from engine.config import EngineConfig

KIND = "accelerator_type:"  # in a resource's name, before Ray's name for a kind of GPU


@dataclass(frozen=True, slots=True)
class Node:
    """As Ray's GCS knows it."""

    node_id: str
    address: str
    resources: dict[str, float]  # in all
    labels: dict[str, str]


def alive_nodes() -> list[Node]:
    """The one that this process is connected to comes first."""
    nodes = [
        Node(node["NodeID"], node["NodeManagerAddress"], dict(node["Resources"]), dict(node.get("Labels") or {}))
        for node in ray.nodes()
        if node["Alive"]
    ]
    here = ray.get_runtime_context().get_node_id()
    return sorted(nodes, key=lambda node: (node.node_id != here, node.address))


def has_labels(node: Node, wanted: dict[str, str]) -> bool:
    """Of wanted values those that are plain: Ray also knows !value and in(...), which pass here."""
    plain = {name: value for name, value in wanted.items() if not value.startswith(("!", "in("))}
    return all(node.labels.get(name) == value for name, value in plain.items())


def is_meant(node: Node, config: EngineConfig) -> bool:
    """Whether it has the kind of GPU and the labels that an engine asks for."""
    kind = config.accelerator_type
    return (kind is None or KIND + kind in node.resources) and has_labels(node, config.node_labels)


def num_places(config: EngineConfig, nodes: Iterable[Node]) -> int:
    """For stages on GPUs, whose ranks share a node, if nothing else were there."""
    return sum(
        int(node.resources.get("GPU", 0)) // config.tensor_parallel_size for node in nodes if is_meant(node, config)
    )
