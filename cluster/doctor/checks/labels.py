"""Whether nodes have the labels, and the kind of GPU, that a configuration asks for."""

from collections.abc import Iterator, Sequence

from cluster.doctor.finding import Finding, failure
from cluster.doctor.need import Need
from cluster.workers.nodes import KIND, Node, has_labels


def check_labels(needs: Sequence[Need], nodes: Sequence[Node]) -> Iterator[Finding]:
    for need in needs:
        wanted = need.config.node_labels
        if wanted and not any(has_labels(node, wanted) for node in nodes):
            there = sorted({f"{name}={value}" for node in nodes for name, value in node.labels.items()})
            yield failure(
                "labels",
                f"no node has node_labels={wanted} of {need.config.model_name}; there are {', '.join(there) or 'none'}",
                "ray start --labels NAME=VALUE on the nodes that are meant, or correct node_labels",
            )
        kind = need.config.accelerator_type
        if kind is not None and not any(KIND + kind in node.resources for node in nodes):
            there = sorted({name.removeprefix(KIND) for node in nodes for name in node.resources if KIND in name})
            yield failure(
                "labels",
                f"no node has accelerator_type={kind} of {need.config.model_name}; there are "
                f"{', '.join(there) or 'none'}",
                "correct accelerator_type: names are Ray's, as in ray.util.accelerators",
            )
