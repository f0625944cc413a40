"""All checks of what is to run that start nothing on the nodes but short tasks."""

from collections.abc import Iterator, Sequence

from cluster.doctor.checks.fits import check_fits
from cluster.doctor.checks.folders import check_folders
from cluster.doctor.checks.labels import check_labels
from cluster.doctor.checks.limits import check_shared
from cluster.doctor.checks.room import check_room
from cluster.doctor.facts.node import NodeFacts
from cluster.doctor.finding import Finding
from cluster.doctor.need import Need
from cluster.workers.nodes import Node


def check_plan(
    needs: Sequence[Need], facts: Sequence[NodeFacts], nodes: Sequence[Node], *, is_serving: bool
) -> Iterator[Finding]:
    """`facts`: of those nodes that answered; `is_serving`: see `check_fits`."""
    answering = {each.node_id for each in facts}
    yield from check_labels(needs, nodes)
    yield from check_folders(needs, [node for node in nodes if node.node_id in answering])
    yield from check_room(needs, nodes)
    yield from check_shared(needs, facts, nodes)
    yield from check_fits(needs, facts, nodes, is_serving=is_serving)
